import java.time.Duration;
import java.util.Map;
import java.util.TreeMap;
import java.util.TreeSet;
import org.apache.kafka.connect.mirror.MirrorClient;
import org.apache.kafka.connect.mirror.RemoteClusterUtils;

/** What MirrorMaker 2's own client finds in a target: upstream clusters, remote topics, hops, and the offsets of a group, a line each. */
public class MirrorClients {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> properties = Map.of("bootstrap.servers", arguments[0]);
        try (MirrorClient client = new MirrorClient(properties)) {
            System.out.println("heartbeats " + new TreeSet<>(client.heartbeatTopics()));
            System.out.println("checkpoints " + new TreeSet<>(client.checkpointTopics()));
            System.out.println("upstream " + new TreeSet<>(client.upstreamClusters()));
            System.out.println("hops " + client.replicationHops("A"));
            System.out.println("remote " + new TreeSet<>(client.remoteTopics("A")));
        }
        Map<String, Object> offsets = new TreeMap<>();
        RemoteClusterUtils.translateOffsets(properties, "A", arguments[1], Duration.ofSeconds(20))
            .forEach((partition, offset) -> offsets.put(partition.toString(), offset.offset()));
        System.out.println("offsets " + offsets);
    }
}
