import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.lang.reflect.InvocationTargetException;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.utils.Exit;

/** Apache Kafka's command-line classes in one virtual machine, one after the other: a line of JSON in (class and arguments), one out. */
public class KafkaTools {
    private static class Ended extends Error {
        final int code;

        Ended(int code) {
            super(null, null, false, false);
            this.code = code;
        }
    }

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        PrintStream answers = System.out;
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        ByteArrayOutputStream printed = new ByteArrayOutputStream();
        // Scala's Console keeps the stream that it finds first, so there is one for all.
        PrintStream both = new PrintStream(printed, true, StandardCharsets.UTF_8);
        System.setOut(both);
        System.setErr(both);
        Exit.setExitProcedure((code, message) -> {
            throw new Ended(code);
        });
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode asked = mapper.readTree(line);
            List<String> words = new ArrayList<>();
            asked.get("arguments").forEach(word -> words.add(word.asText()));
            printed.reset();
            int code = 0;
            try {
                Class.forName(asked.get("class").asText()).getMethod("main", String[].class)
                    .invoke(null, (Object) words.toArray(new String[0]));
            } catch (InvocationTargetException failure) {
                Throwable cause = failure.getCause();
                code = cause instanceof Ended ? ((Ended) cause).code : 1;
                if (!(cause instanceof Ended)) {
                    cause.printStackTrace(both);
                }
            } catch (ReflectiveOperationException failure) {
                code = 1;
                failure.printStackTrace(both);
            }
            both.flush();
            answers.println(mapper.writeValueAsString(Map.of("code", code, "printed", printed.toString(StandardCharsets.UTF_8))));
        }
        Runtime.getRuntime().halt(0);
    }
}
