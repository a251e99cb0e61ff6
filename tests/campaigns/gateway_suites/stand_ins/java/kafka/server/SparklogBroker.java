package kafka.server;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.lang.reflect.Proxy;
import java.net.Socket;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.stream.Collectors;
import kafka.cluster.Partition;
import kafka.network.SocketServer;
import kafka.server.metadata.*;
import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.AdminClientConfig;
import org.apache.kafka.clients.admin.AlterConfigOp;
import org.apache.kafka.clients.admin.ConfigEntry;
import org.apache.kafka.clients.admin.OffsetSpec;
import org.apache.kafka.common.DirectoryId;
import org.apache.kafka.common.Node;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.config.ConfigResource;
import org.apache.kafka.common.metadata.PartitionRecord;
import org.apache.kafka.common.metadata.RegisterBrokerRecord;
import org.apache.kafka.common.metadata.TopicRecord;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.network.ListenerName;
import org.apache.kafka.common.protocol.ApiKeys;
import org.apache.kafka.common.requests.AbstractResponse;
import org.apache.kafka.common.requests.MetadataRequest;
import org.apache.kafka.common.requests.MetadataResponse;
import org.apache.kafka.common.requests.RequestHeader;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.common.utils.Utils;
import org.apache.kafka.coordinator.group.GroupCoordinator;
import org.apache.kafka.image.MetadataDelta;
import org.apache.kafka.image.MetadataImage;
import org.apache.kafka.image.MetadataProvenance;
import org.apache.kafka.metadata.*;
import org.apache.kafka.metadata.properties.MetaProperties;
import org.apache.kafka.metadata.properties.MetaPropertiesEnsemble;
import org.apache.kafka.metadata.properties.MetaPropertiesVersion;
import org.apache.kafka.server.ServerSocketFactory;
import org.apache.kafka.server.common.KRaftVersion;
import org.mockito.Mockito;
import org.mockito.invocation.InvocationOnMock;
import scala.Option;

/**
 * A broker of sparklog with a gateway, as Kafka's tests see their brokers. The suite's process starts and stops it.
 *
 * <p>Its metadata cache has the topics of the broker's metadata, and its replica manager their leaders and first
 * offsets. The other parts of a Kafka server (logs, producers, quotas) are null.
 */
public final class SparklogBroker extends BrokerServer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final HttpClient HTTP = HttpClient.newHttpClient();
    private static final Duration TIMEOUT = Duration.ofMinutes(10);
    private static final short METADATA_VERSION = 12;
    private static final Class<?> LOG = logClass();

    private final QuorumTestHarness test;
    private final String path;
    private CompletableFuture<Integer> port = new CompletableFuture<>();
    private MetadataResponse lastMetadata;
    private boolean isRunning = false;

    SparklogBroker(QuorumTestHarness test, String cluster, KafkaConfig config, Time time, FaultHandlerFactory faults) {
        super(new SharedServer(config, properties(config), time, new Metrics(), new CompletableFuture<>(), List.of(),
            faults, ServerSocketFactory.INSTANCE));
        this.test = test;
        path = "/clusters/" + cluster + "/brokers/" + config.brokerId();
        groupCoordinator_$eq((GroupCoordinator) Proxy.newProxyInstance(GroupCoordinator.class.getClassLoader(),
            new Class<?>[] {GroupCoordinator.class}, (proxy, method, arguments) -> {
                if (method.getName().equals("groupMetadataTopicConfigs")) {
                    createOffsetsTopic();
                    return new Properties();
                }
                throw new UnsupportedOperationException("the group coordinator of sparklog is in another process");
            }));
    }

    /**
     * Creates __consumer_offsets, as the first search for a coordinator does. Its number of replicas is the default of
     * new topics. Afterwards the default is what the test sets for __transaction_state, or if it sets nothing, its own
     * default.
     */
    private void createOffsetsTopic() throws Exception {
        Object factor = config().originals().getOrDefault("transaction.state.log.replication.factor",
            config().originals().get("default.replication.factor"));
        AlterConfigOp change = new AlterConfigOp(
            new ConfigEntry("default.replication.factor", String.valueOf(factor)), AlterConfigOp.OpType.SET);
        try (Admin admin = admin()) {
            admin.listConsumerGroupOffsets("none").partitionsToOffsetAndMetadata().get();
            if (factor != null) {
                ConfigResource brokers = new ConfigResource(ConfigResource.Type.BROKER, "");
                admin.incrementalAlterConfigs(Map.of(brokers, List.of(change))).all().get();
            }
        }
    }

    private static MetaPropertiesEnsemble properties(KafkaConfig config) {
        MetaPropertiesEnsemble.Copier copier = new MetaPropertiesEnsemble.Copier(MetaPropertiesEnsemble.EMPTY);
        copier.setLogDirProps(config.metadataLogDir(), new MetaProperties.Builder()
            .setVersion(MetaPropertiesVersion.V1)
            .setClusterId(Uuid.randomUuid().toString())
            .setNodeId(config.brokerId())
            .setDirectoryId(DirectoryId.random())
            .build());
        return copier.copy();
    }

    /** Posts an order to the suite's process, and returns its answer. */
    static JsonNode control(String path, Map<String, ?> body) {
        try {
            HttpRequest request = HttpRequest.newBuilder(URI.create(System.getProperty("sparklog.control") + path))
                .timeout(TIMEOUT)
                .POST(HttpRequest.BodyPublishers.ofByteArray(JSON.writeValueAsBytes(body)))
                .build();
            HttpResponse<String> response = HTTP.send(request, HttpResponse.BodyHandlers.ofString());
            if (response.statusCode() != 200) {
                throw new IllegalStateException(path + ": " + response.body());
            }
            return JSON.readTree(response.body());
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
            throw new IllegalStateException(e);
        }
    }

    /** Begins to start the broker; the next call that needs its port waits. So brokers start side by side. */
    @Override
    public synchronized void startup() {
        Map<String, String> properties = new HashMap<>();
        config().originals().forEach((name, value) -> properties.put(name, String.valueOf(value)));
        Map<String, ?> order = Map.of("properties", properties, "count", test.brokerCount());
        port = CompletableFuture.supplyAsync(() -> {
            int number = control(path + "/start", order).get("port").asInt();
            metadata(number); // some tests give the first client of a gateway half a second, in which it loads modules
            return number;
        });
        isRunning = true;
    }

    @Override
    public synchronized void shutdown(Duration timeout) {
        if (isRunning) {
            port.handle((number, error) -> number).join();
            if (!test.isOver()) {
                control(path + "/stop", Map.of());
            }
            isRunning = false;
        }
    }

    @Override
    public void awaitShutdown() {
        // shutdown() returns when the process has ended
    }

    @Override
    public synchronized boolean isShutdown() {
        return !isRunning;
    }

    @Override
    public synchronized BrokerState brokerState() {
        return isRunning ? BrokerState.RUNNING : BrokerState.NOT_RUNNING;
    }

    @Override
    public synchronized int boundPort(ListenerName listener) {
        return port.join();
    }

    @Override
    public String clusterId() {
        return metadata().clusterId();
    }

    /** The brokers, topics and partitions that this broker names in its metadata. */
    @Override
    public KRaftMetadataCache metadataCache() {
        MetadataDelta delta = new MetadataDelta.Builder().setImage(MetadataImage.EMPTY).build();
        MetadataResponse metadata = metadata();
        for (Node node : metadata.brokers()) {
            RegisterBrokerRecord.BrokerEndpoint address = new RegisterBrokerRecord.BrokerEndpoint()
                .setName(SecurityProtocol.PLAINTEXT.name)
                .setSecurityProtocol(SecurityProtocol.PLAINTEXT.id)
                .setHost(node.host())
                .setPort(node.port());
            delta.replay(new RegisterBrokerRecord()
                .setBrokerId(node.id())
                .setIncarnationId(Uuid.randomUuid())
                .setEndPoints(new RegisterBrokerRecord.BrokerEndpointCollection(List.of(address).iterator()))
                .setFenced(false));
        }
        for (MetadataResponse.TopicMetadata topic : metadata.topicMetadata()) {
            delta.replay(new TopicRecord().setName(topic.topic()).setTopicId(topic.topicId()));
            for (MetadataResponse.PartitionMetadata partition : topic.partitionMetadata()) {
                delta.replay(new PartitionRecord()
                    .setTopicId(topic.topicId())
                    .setPartitionId(partition.partition())
                    .setReplicas(partition.replicaIds)
                    .setDirectories(partition.replicaIds.stream().map(replica -> DirectoryId.UNASSIGNED).toList())
                    .setIsr(partition.inSyncReplicaIds)
                    .setLeader(partition.leaderId.orElse(LeaderAndIsr.NO_LEADER))
                    .setLeaderEpoch(partition.leaderEpoch.orElse(0))
                    .setPartitionEpoch(0));
            }
        }
        KRaftMetadataCache cache = new KRaftMetadataCache(config().brokerId(), () -> KRaftVersion.LATEST_PRODUCTION);
        cache.setImage(delta.apply(MetadataProvenance.EMPTY));
        return cache;
    }

    @Override
    public KafkaApis dataPlaneRequestProcessor() {
        return Mockito.mock(KafkaApis.class, call -> switch (call.getMethod().getName()) {
            case "metadataCache" -> metadataCache();
            case "clusterId" -> clusterId();
            default -> throw unknown(call);
        });
    }

    /** The ids of all topics by their names. */
    Map<String, Uuid> topicIds() {
        return metadata().topicMetadata().stream()
            .collect(Collectors.toMap(MetadataResponse.TopicMetadata::topic, MetadataResponse.TopicMetadata::topicId));
    }

    /** A replica manager that knows the leaders, the first offsets and high watermarks of partitions, as clients do. */
    @Override
    public ReplicaManager replicaManager() {
        return Mockito.mock(ReplicaManager.class, call -> {
            TopicPartition partition = call.getArgument(0);
            return switch (call.getMethod().getName()) {
                case "localLog" -> Option.apply(log(partition));
                case "onlinePartition" -> Option.apply(leaderOf(partition) == config().brokerId()
                    ? Mockito.mock(Partition.class, of -> answer(of, "leaderLogIfLocal", Option.apply(log(partition))))
                    : null);
                default -> throw unknown(call);
            };
        });
    }

    private Object log(TopicPartition partition) {
        return Mockito.mock(LOG, call -> switch (call.getMethod().getName()) {
            case "logStartOffset" -> offset(partition, OffsetSpec.earliest());
            case "highWatermark" -> offset(partition, OffsetSpec.latest());
            default -> throw unknown(call);
        });
    }

    /** A server whose port is that of the gateway. */
    @Override
    public SocketServer socketServer() {
        return Mockito.mock(SocketServer.class, call -> answer(call, "boundPort", port.join()));
    }

    private static Object answer(InvocationOnMock call, String method, Object result) {
        if (call.getMethod().getName().equals(method)) {
            return result;
        }
        throw unknown(call);
    }

    static RuntimeException unknown(InvocationOnMock call) {
        return new UnsupportedOperationException(call.getMethod() + ": this part of a broker is in another process");
    }

    private int leaderOf(TopicPartition partition) {
        return metadata().topicMetadata().stream()
            .filter(topic -> topic.topic().equals(partition.topic()))
            .flatMap(topic -> topic.partitionMetadata().stream())
            .filter(of -> of.partition() == partition.partition())
            .findFirst().flatMap(of -> of.leaderId).orElse(LeaderAndIsr.NO_LEADER);
    }

    private long offset(TopicPartition partition, OffsetSpec position) {
        try (Admin admin = admin()) {
            return admin.listOffsets(Map.of(partition, position)).partitionResult(partition).get().offset();
        } catch (ExecutionException | InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }

    private Admin admin() {
        return Admin.create(Map.of(AdminClientConfig.BOOTSTRAP_SERVERS_CONFIG, "localhost:" + port.join()));
    }

    private static Class<?> logClass() {
        try {
            return Class.forName("kafka.log.UnifiedLog"); // Kafka 4.0
        } catch (ClassNotFoundException e) {
            try {
                return Class.forName("org.apache.kafka.storage.internals.log.UnifiedLog");
            } catch (ClassNotFoundException other) {
                throw new IllegalStateException(other);
            }
        }
    }

    /** The present metadata, or for a broker that does not run, the last ones that a test has read. */
    private synchronized MetadataResponse metadata() {
        if (isRunning || lastMetadata == null) {
            lastMetadata = metadata(port.join());
        }
        return lastMetadata;
    }

    private static MetadataResponse metadata(int port) {
        MetadataRequest request = MetadataRequest.Builder.allTopics().build(METADATA_VERSION);
        RequestHeader header = new RequestHeader(ApiKeys.METADATA, METADATA_VERSION, "stand-in", 0);
        try (Socket socket = new Socket("localhost", port)) {
            byte[] bytes = Utils.toArray(request.serializeWithHeader(header));
            DataOutputStream out = new DataOutputStream(socket.getOutputStream());
            out.writeInt(bytes.length);
            out.write(bytes);
            out.flush();
            DataInputStream in = new DataInputStream(socket.getInputStream());
            ByteBuffer answer = ByteBuffer.wrap(in.readNBytes(in.readInt()));
            return (MetadataResponse) AbstractResponse.parseResponse(answer, header);
        } catch (IOException e) {
            throw new UncheckedIOException(e);
        }
    }
}
