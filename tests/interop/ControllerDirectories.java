import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.lang.reflect.Method;
import java.lang.reflect.Proxy;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import org.apache.kafka.common.message.AssignReplicasToDirsRequestData;
import org.apache.kafka.common.message.AssignReplicasToDirsResponseData;
import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.Errors;
import org.apache.kafka.common.protocol.Message;
import org.apache.kafka.common.protocol.MessageUtil;
import org.apache.kafka.common.protocol.ObjectSerializationCache;
import org.apache.kafka.common.utils.LogContext;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.controller.QuorumFeatures;
import org.apache.kafka.controller.metrics.QuorumControllerMetrics;
import org.apache.kafka.metadata.MetadataRecordSerde;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.timeline.SnapshotRegistry;

/** What Apache Kafka's controller makes of brokers that say where their replicas are: a line of JSON in, a line of JSON out. */
public class ControllerDirectories {
    private static final String PACKAGE = "org.apache.kafka.controller.";
    private static final MetadataRecordSerde SERDE = new MetadataRecordSerde();

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            System.out.println(answer(mapper, mapper.readTree(line)));
        }
    }

    private static ObjectNode answer(ObjectMapper mapper, JsonNode asked) throws Exception {
        LogContext context = new LogContext();
        SnapshotRegistry registry = new SnapshotRegistry(context);
        Object features = built("FeatureControlManager", Map.of("setSnapshotRegistry", registry, "setQuorumFeatures",
            new QuorumFeatures(0, QuorumFeatures.defaultSupportedFeatureMap(true), List.of(0))));
        Object configs = built("ConfigurationControlManager", Map.of("setSnapshotRegistry", registry, "setFeatureControl", features,
            "setKafkaConfigSchema", kafka.server.KafkaRaftServer.configSchema(), "setNodeId", 0));
        Class<?> handler = Class.forName(PACKAGE + "ClusterControlManager$BrokerShutdownHandler");
        Object brokers = built("ClusterControlManager", Map.of("setSnapshotRegistry", registry, "setFeatureControlManager", features,
            "setClusterId", "c", "setMetrics", new QuorumControllerMetrics(Optional.empty(), Time.SYSTEM, 9000), "setBrokerShutdownHandler",
            Proxy.newProxyInstance(handler.getClassLoader(), new Class<?>[] {handler}, (proxy, method, values) -> null)));
        Object replicas = built("ReplicationControlManager", Map.of("setSnapshotRegistry", registry, "setFeatureControl", features,
            "setConfigurationControl", configs, "setClusterControl", brokers));
        long offset = 0;
        for (JsonNode record : asked.get("records")) {
            ByteBuffer bytes = bytesOf(record);
            Message message = SERDE.read(new ByteBufferAccessor(bytes), bytes.remaining()).message();
            replay(message, offset++, features, configs, brokers, replicas);
        }
        ObjectNode answer = mapper.createObjectNode();
        try {
            Object result = call(replicas, "handleAssignReplicasToDirs",
                new AssignReplicasToDirsRequestData(new ByteBufferAccessor(bytesOf(asked.get("request"))), (short) 0));
            AssignReplicasToDirsResponseData response = (AssignReplicasToDirsResponseData) call(result, "response");
            answer.put("response", text(MessageUtil.toByteBufferAccessor(response, (short) 0).buffer()));
            ArrayNode records = answer.putArray("records");
            for (Object record : (List<?>) call(result, "records")) {
                ObjectSerializationCache cache = new ObjectSerializationCache();
                ByteBuffer bytes = ByteBuffer.allocate(SERDE.recordSize((ApiMessageAndVersion) record, cache));
                SERDE.write((ApiMessageAndVersion) record, cache, new ByteBufferAccessor(bytes));
                bytes.flip();
                records.add(text(bytes));
            }
        } catch (InvocationTargetException error) {
            answer.put("error", Errors.forException(error.getCause()).code());
        }
        return answer;
    }

    /** Give a record to who takes it. */
    private static void replay(Message record, long offset, Object... managers) throws Exception {
        for (Object manager : managers) {
            for (Method method : manager.getClass().getDeclaredMethods()) {
                Class<?>[] types = method.getParameterTypes();
                if (method.getName().equals("replay") && types[0] == record.getClass()) {
                    method.setAccessible(true);
                    method.invoke(manager, types.length == 1 ? new Object[] {record} : new Object[] {record, offset});
                    return;
                }
            }
        }
        throw new IllegalArgumentException("nobody takes " + record);
    }

    private static Object built(String name, Map<String, Object> with) throws Exception {
        var maker = Class.forName(PACKAGE + name + "$Builder").getDeclaredConstructor();
        maker.setAccessible(true);
        Object builder = maker.newInstance();
        for (Map.Entry<String, Object> each : with.entrySet()) {
            call(builder, each.getKey(), each.getValue());
        }
        return call(builder, "build");
    }

    private static Object call(Object target, String name, Object... values) throws Exception {
        for (Method method : target.getClass().getDeclaredMethods()) {
            if (method.getName().equals(name) && method.getParameterCount() == values.length && !method.isBridge()) {
                method.setAccessible(true);
                return method.invoke(target, values);
            }
        }
        Method method = target.getClass().getMethod(name);  // a record's, or what it inherits
        method.setAccessible(true);
        return method.invoke(target, values);
    }

    private static ByteBuffer bytesOf(JsonNode node) {
        return ByteBuffer.wrap(Base64.getDecoder().decode(node.asText()));
    }

    private static String text(ByteBuffer bytes) {
        byte[] copy = new byte[bytes.remaining()];
        bytes.get(copy);
        return Base64.getEncoder().encodeToString(copy);
    }
}
