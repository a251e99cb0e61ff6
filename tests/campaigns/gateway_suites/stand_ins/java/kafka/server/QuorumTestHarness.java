package kafka.server;

import java.util.Collection;
import java.util.Map;
import java.util.Properties;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.stream.Collectors;
import java.util.stream.Stream;
import javax.security.auth.login.Configuration;
import kafka.integration.KafkaServerTestHarness;
import kafka.utils.Logging;
import kafka.utils.TestInfoUtils;
import org.apache.kafka.clients.consumer.GroupProtocol;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.security.JaasUtils;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.common.utils.Time;
import org.apache.kafka.controller.Controller;
import org.apache.kafka.controller.ResultOrError;
import org.apache.kafka.server.common.MetadataVersion;
import org.apache.kafka.server.fault.MockFaultHandler;
import org.junit.jupiter.api.AfterEach;
import org.junit.jupiter.api.BeforeEach;
import org.junit.jupiter.api.TestInfo;
import org.junit.jupiter.params.provider.Arguments;
import org.mockito.Mockito;
import scala.Option;
import scala.collection.immutable.Seq;
import scala.jdk.javaapi.CollectionConverters;

/**
 * Stands in for Kafka's class of this name, from which its tests inherit their cluster. It comes first on the class
 * path. Its brokers are those of sparklog, and there is no controller of Kafka.
 */
public abstract class QuorumTestHarness implements Logging {
    private final String cluster = UUID.randomUUID().toString();
    private final QuorumTestHarnessFaultHandlerFactory faultHandlerFactory =
        new QuorumTestHarnessFaultHandlerFactory(new MockFaultHandler("quorumTestHarnessFaultHandler"));
    private boolean isOver;
    private TestInfo testInfo;
    private String logIdent = "";

    @BeforeEach
    public void setUp(TestInfo testInfo) {
        this.testInfo = testInfo;
    }

    @AfterEach
    public void tearDown() {
        SparklogBroker.control("/clusters/" + cluster + "/remove", Map.of());
        System.clearProperty(JaasUtils.JAVA_LOGIN_CONFIG_PARAM);
        Configuration.setConfiguration(null);
    }

    /** Called between a test and its end, in which the tests shut all brokers down. */
    public void testOver() {
        isOver = true;
    }

    boolean isOver() {
        return isOver;
    }

    int brokerCount() {
        return this instanceof KafkaServerTestHarness test ? test.configs().size() : 1;
    }

    public KafkaBroker createBroker(KafkaConfig config, Time time, boolean startup, Option<String> threadNamePrefix) {
        SparklogBroker broker = new SparklogBroker(this, cluster, config, time, faultHandlerFactory);
        if (startup) {
            broker.startup();
        }
        return broker;
    }

    public Time createBroker$default$2() {
        return Time.SYSTEM;
    }

    public boolean createBroker$default$3() {
        return true;
    }

    public Option<String> createBroker$default$4() {
        return Option.empty();
    }

    public scala.collection.Seq<ControllerServer> controllerServers() {
        return empty();
    }

    /** A controller that knows the ids of the topics. For the position of its log, it waits for all brokers. */
    public ControllerServer controllerServer() {
        return Mockito.mock(ControllerServer.class, call -> switch (call.getMethod().getName()) {
            case "raftManager" -> {
                SparklogBroker.control("/clusters/" + cluster + "/settle", Map.of());
                yield Mockito.mock(call.getMethod().getReturnType(), Mockito.RETURNS_DEEP_STUBS);
            }
            case "controller" -> Mockito.mock(Controller.class, of -> switch (of.getMethod().getName()) {
                case "findAllTopicIds" -> CompletableFuture.completedFuture(topicIds());
                case "findTopicIds" -> CompletableFuture.completedFuture(topicIds().entrySet().stream()
                    .filter(topic -> of.<Collection<String>>getArgument(1).contains(topic.getKey()))
                    .collect(Collectors.toMap(Map.Entry::getKey, topic -> new ResultOrError<>(topic.getValue()))));
                default -> throw SparklogBroker.unknown(of);
            });
            default -> throw SparklogBroker.unknown(call);
        });
    }

    private Map<String, Uuid> topicIds() {
        KafkaServerTestHarness test = (KafkaServerTestHarness) this;
        return ((SparklogBroker) test.aliveBrokers().head()).topicIds();
    }

    /** The newest version in which tests do not switch eligible leader replicas off, which sparklog cannot do. */
    public MetadataVersion metadataVersion() {
        return MetadataVersion.IBP_4_0_IV3;
    }

    public scala.collection.Seq<Properties> kraftControllerConfigs(TestInfo testInfo) {
        return empty();
    }

    public SecurityProtocol controllerListenerSecurityProtocol() {
        return SecurityProtocol.PLAINTEXT;
    }

    public scala.collection.Seq<SecurityProtocol> extraControllerSecurityProtocols() {
        return empty();
    }

    public QuorumTestHarnessFaultHandlerFactory faultHandlerFactory() {
        return faultHandlerFactory;
    }

    public boolean isShareGroupTest() {
        return testInfo.getDisplayName().contains("kip932");
    }

    public Option<GroupProtocol> maybeGroupProtocolSpecified() {
        return TestInfoUtils.maybeGroupProtocolSpecified(testInfo);
    }

    public GroupProtocol groupProtocolFromTestParameters() {
        return maybeGroupProtocolSpecified().get();
    }

    public String logIdent() {
        return logIdent;
    }

    public void logIdent_$eq(String ident) {
        logIdent = ident;
    }

    private static <T> Seq<T> empty() {
        return CollectionConverters.asScala(java.util.List.<T>of()).toList();
    }

    // Parameters of Kafka's tests: in Kafka 4.0 with the name of the quorum, later without.

    public static Stream<Arguments> getTestQuorumAndGroupProtocolParametersAll() {
        return Stream.of(Arguments.of("kraft", "classic"), Arguments.of("kraft", "consumer"));
    }

    public static Stream<Arguments> getTestQuorumAndGroupProtocolParametersClassicGroupProtocolOnly() {
        return Stream.of(Arguments.of("kraft", "classic"));
    }

    public static Stream<Arguments> getTestQuorumAndGroupProtocolParametersConsumerGroupProtocolOnly() {
        return Stream.of(Arguments.of("kraft", "consumer"));
    }

    public static Stream<Arguments> getTestQuorumAndGroupProtocolParametersClassicGroupProtocolOnly_ZK_implicit() {
        return Stream.of(Arguments.of("kraft", "classic"));
    }

    public static Stream<Arguments> getTestGroupProtocolParametersAll() {
        return Stream.of(Arguments.of("classic"), Arguments.of("consumer"));
    }

    public static Stream<Arguments> getTestGroupProtocolParametersClassicGroupProtocolOnly() {
        return Stream.of(Arguments.of("classic"));
    }

    public static Stream<Arguments> getTestGroupProtocolParametersConsumerGroupProtocolOnly() {
        return Stream.of(Arguments.of("consumer"));
    }
}
