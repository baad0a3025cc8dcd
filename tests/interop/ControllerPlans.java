import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Iterator;
import java.util.List;
import java.util.Optional;
import java.util.Random;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.metadata.PartitionChangeRecord;
import org.apache.kafka.common.metadata.PartitionChangeRecordJsonConverter;
import org.apache.kafka.controller.PartitionChangeBuilder;
import org.apache.kafka.metadata.LeaderRecoveryState;
import org.apache.kafka.metadata.PartitionRegistration;
import org.apache.kafka.metadata.placement.ClusterDescriber;
import org.apache.kafka.metadata.placement.PartitionAssignment;
import org.apache.kafka.metadata.placement.PlacementSpec;
import org.apache.kafka.metadata.placement.StripedReplicaPlacer;
import org.apache.kafka.metadata.placement.UsableBroker;
import org.apache.kafka.server.common.ApiMessageAndVersion;
import org.apache.kafka.server.common.MetadataVersion;

/** What Apache Kafka's controller makes of partitions and brokers: a line of JSON in, a line of JSON out. */
public class ControllerPlans {
    private static final Uuid UNASSIGNED = new Uuid(0L, 1L);

    public static void main(String[] arguments) throws Exception {
        ObjectMapper mapper = new ObjectMapper();
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            JsonNode asked = mapper.readTree(line);
            System.out.println(asked.has("brokers") ? place(asked) : change(asked));
        }
    }

    private static String change(JsonNode asked) {
        JsonNode old = asked.get("partition");
        List<Uuid> directories = new ArrayList<>();
        old.get("directories").forEach(directory -> directories.add(Uuid.fromString(directory.asText())));
        PartitionRegistration partition = new PartitionRegistration.Builder()
            .setReplicas(ints(old.get("replicas")))
            .setDirectories(directories.toArray(new Uuid[0]))
            .setIsr(ints(old.get("isr")))
            .setRemovingReplicas(ints(old.get("removing")))
            .setAddingReplicas(ints(old.get("adding")))
            .setElr(ints(old.get("elr")))
            .setLastKnownElr(ints(old.get("last")))
            .setLeader(old.get("leader").asInt())
            .setLeaderRecoveryState(LeaderRecoveryState.of((byte) old.get("recovery").asInt()))
            .setLeaderEpoch(10)
            .setPartitionEpoch(20)
            .build();
        List<Integer> there = list(asked.get("there"));
        MetadataVersion version = MetadataVersion.fromFeatureLevel((short) asked.get("level").asInt());
        PartitionChangeBuilder builder = new PartitionChangeBuilder(partition, new Uuid(7L, 7L), 0, there::contains, version,
            asked.get("min_isr").asInt(), asked.get("elr").asBoolean());
        builder.setElection(PartitionChangeBuilder.Election.valueOf(asked.get("election").asText()))
            .setTargetIsr(list(asked.get("isr")))
            .setTargetReplicas(list(asked.get("replicas")))
            .setTargetRemoving(list(asked.get("removing")))
            .setTargetAdding(list(asked.get("adding")))
            .setUncleanShutdownReplicas(list(asked.get("unclean")))
            .setTargetLeaderRecoveryState(LeaderRecoveryState.of((byte) asked.get("recovery").asInt()))
            .setDefaultDirProvider(broker -> UNASSIGNED);
        Optional<ApiMessageAndVersion> record = builder.build();
        if (record.isEmpty()) {
            return "null";
        }
        return PartitionChangeRecordJsonConverter.write((PartitionChangeRecord) record.get().message(), (short) 2).toString();
    }

    private static String place(JsonNode asked) {
        List<UsableBroker> brokers = new ArrayList<>();
        for (JsonNode broker : asked.get("brokers")) {
            Optional<String> rack = broker.get(1).isNull() ? Optional.empty() : Optional.of(broker.get(1).asText());
            brokers.add(new UsableBroker(broker.get(0).asInt(), rack, broker.get(2).asBoolean()));
        }
        ClusterDescriber cluster = new ClusterDescriber() {
            @Override
            public Iterator<UsableBroker> usableBrokers() {
                return brokers.iterator();
            }

            @Override
            public Uuid defaultDir(int broker) {
                return UNASSIGNED;
            }
        };
        PlacementSpec wanted = new PlacementSpec(0, asked.get("count").asInt(), (short) asked.get("factor").asInt());
        List<List<Integer>> placed = new ArrayList<>();
        for (PartitionAssignment one : new StripedReplicaPlacer(new Random(asked.get("seed").asLong())).place(wanted, cluster).assignments()) {
            placed.add(one.replicas());
        }
        return placed.toString();
    }

    private static int[] ints(JsonNode node) {
        return list(node).stream().mapToInt(Integer::intValue).toArray();
    }

    private static List<Integer> list(JsonNode node) {
        List<Integer> found = new ArrayList<>();
        node.forEach(item -> found.add(item.asInt()));
        return found;
    }
}
