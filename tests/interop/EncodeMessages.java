import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/** Encodes messages with Apache Kafka's own classes: lines of "class version json" in, lines of hexadecimal bytes out. */
public class EncodeMessages {
    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split(" ", 3);
            short version = Short.parseShort(parts[1]);
            try {
                Class<?> converter = Class.forName(parts[0] + "JsonConverter");
                Message message = (Message) converter.getMethod("read", JsonNode.class, short.class)
                    .invoke(null, mapper.readTree(parts[2]), version);
                ObjectSerializationCache cache = new ObjectSerializationCache();
                ByteBuffer buffer = ByteBuffer.allocate(message.size(cache, version));
                message.write(new ByteBufferAccessor(buffer), cache, version);
                System.out.println(HexFormat.of().formatHex(buffer.array(), 0, buffer.position()));
            } catch (ReflectiveOperationException error) {
                System.out.println("error " + error + " " + error.getCause());
            }
        }
    }
}
