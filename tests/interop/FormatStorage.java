import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;

/** Apache Kafka's storage tool, many times in one process: lines of arguments between tabs in; "code", a tab, what was printed out. */
public class FormatStorage {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = System.out;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            ByteArrayOutputStream bytes = new ByteArrayOutputStream();
            PrintStream printed = new PrintStream(bytes, true, StandardCharsets.UTF_8);
            int code;
            try {
                System.setOut(printed);
                code = kafka.tools.StorageTool.execute(line.split("\t"), printed);
            } catch (Throwable error) {
                code = 1;
                printed.print(error.getClass().getSimpleName() + ": " + error.getMessage());
            }
            out.println(code + "\t" + bytes.toString(StandardCharsets.UTF_8).replace("\\", "\\\\").replace("\n", "\\n"));
        }
    }
}
