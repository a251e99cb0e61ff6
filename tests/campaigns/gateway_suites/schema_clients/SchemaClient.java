import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import com.google.protobuf.DescriptorProtos.FileDescriptorSet;
import com.google.protobuf.Descriptors.Descriptor;
import com.google.protobuf.Descriptors.FileDescriptor;
import com.google.protobuf.DynamicMessage;
import com.google.protobuf.Message;
import com.google.protobuf.util.JsonFormat;
import io.apicurio.registry.resolver.client.RegistryArtifactReference;
import io.apicurio.registry.resolver.client.RegistryClientFacade;
import io.apicurio.registry.resolver.client.RegistryVersionCoordinates;
import io.apicurio.registry.resolver.strategy.ArtifactReference;
import io.apicurio.registry.serde.avro.AvroKafkaDeserializer;
import io.apicurio.registry.serde.avro.AvroKafkaSerializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaDeserializer;
import io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaSerializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaDeserializer;
import io.apicurio.registry.serde.protobuf.ProtobufKafkaSerializer;
import java.io.IOException;
import java.io.InputStream;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Base64;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.avro.Schema;
import org.apache.avro.generic.GenericData;
import org.apache.avro.generic.GenericRecord;
import org.apache.flink.avro.registry.confluent.shaded.io.confluent.kafka.schemaregistry.client.rest.RestService;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;
import org.apache.kafka.common.serialization.Deserializer;
import org.apache.kafka.common.serialization.Serializer;

/**
 * Writes and reads trips with Apicurio's serdes, which look schemas up with Confluent's own Java client.
 *
 * <pre>
 * SchemaClient FILES SERVERS REGISTRY FORMAT write TOPIC     the rows come from stdin, one JSON object per line
 * SchemaClient FILES SERVERS REGISTRY FORMAT read COUNT TOPIC...
 * </pre>
 */
public class SchemaClient {
  static final ObjectMapper JSON = new ObjectMapper();
  static final Map<String, Object> SETTINGS = Map.of(
      "apicurio.registry.url", "http://unused",
      "apicurio.registry.use-id", "contentId",
      "apicurio.registry.auto-register", "true",
      "apicurio.registry.dereference-schema", "true",
      "apicurio.registry.serde.validation-enabled", "false",
      "apicurio.registry.serde.send-type-ref", "false",
      "apicurio.registry.serde.read-type-ref", "false",
      "apicurio.registry.serde.send-indexes", "true",
      "apicurio.registry.serde.read-indexes", "true");

  /** Apicurio's view of a registry: an artifact is a subject, and both ids are the schema's id. */
  record Registry(RestService rest, String type, String ownText) implements RegistryClientFacade {
    interface Call<T> {
      T run() throws Exception;
    }

    static <T> T call(Call<T> call) {
      try {
        return call.run();
      } catch (Exception e) {
        throw new IllegalStateException(e);
      }
    }

    public String getSchemaByContentId(Long id) {
      return call(() -> rest.getId(id.intValue())).getSchemaString();
    }

    public String getSchemaByGlobalId(long id, boolean dereference) {
      return getSchemaByContentId(id);
    }

    public String getSchemaByGAV(String group, String subject, String version) {
      return call(() -> rest.getLatestVersion(subject + "-value")).getSchema();
    }

    public String getSchemaByContentHash(String hash) {
      throw new UnsupportedOperationException();
    }

    public List<RegistryArtifactReference> getReferencesByContentId(long id) {
      return List.of();
    }

    public List<RegistryArtifactReference> getReferencesByGlobalId(long id) {
      return List.of();
    }

    public List<RegistryArtifactReference> getReferencesByGAV(String group, String subject, String version) {
      return List.of();
    }

    public List<RegistryArtifactReference> getReferencesByContentHash(String hash) {
      return List.of();
    }

    public List<RegistryVersionCoordinates> searchVersionsByContent(
        String text, String kind, ArtifactReference reference, boolean canonical) {
      return List.of();
    }

    public RegistryVersionCoordinates createSchema(
        String kind, String group, String subject, String version, String ifExists, boolean canonical, String text,
        Set<RegistryArtifactReference> references) {
      String name = subject.endsWith("-value") ? subject : subject + "-value";
      // Apicurio's own text of a Protobuf schema is one that protoc refuses: it writes entries of maps as messages.
      String registered = ownText == null ? text : ownText;
      int id = call(() -> rest.registerSchema(registered, type, List.of(), name)).getId();
      return RegistryVersionCoordinates.create((long) id, (long) id, group, subject, "1");
    }

    public RegistryVersionCoordinates getVersionCoordinatesByGAV(String group, String subject, String version) {
      long id = call(() -> rest.getLatestVersion(subject + "-value")).getId();
      return RegistryVersionCoordinates.create(id, id, group, subject, "1");
    }

    public Object getClient() {
      return rest;
    }
  }

  /** One kind of schemas: its serdes, and the way from a row's JSON to a value and back. */
  interface Form {
    byte[] encode(String topic, JsonNode row) throws Exception;

    JsonNode decode(String topic, byte[] data) throws Exception;
  }

  static class AvroForm implements Form {
    final Serializer<GenericRecord> serializer;
    final Deserializer<GenericRecord> deserializer;
    final Schema schema;

    AvroForm(Registry registry, Path files) throws Exception {
      schema = new Schema.Parser().parse(Files.readString(files.resolve("trip.avsc")));
      serializer = configured(new AvroKafkaSerializer<>(registry), Map.of());
      deserializer = configured(new AvroKafkaDeserializer<>(registry), Map.of());
    }

    public byte[] encode(String topic, JsonNode row) {
      return serializer.serialize(topic, (GenericRecord) value(schema, row));
    }

    public JsonNode decode(String topic, byte[] data) {
      return plain(deserializer.deserialize(topic, data));
    }

    static Object value(Schema schema, JsonNode node) {
      switch (schema.getType()) {
        case RECORD:
          GenericRecord record = new GenericData.Record(schema);
          schema.getFields().forEach(f -> record.put(f.name(), value(f.schema(), node.get(f.name()))));
          return record;
        case UNION:
          return node.isNull() ? null : value(schema.getTypes().get(1), node);
        case ARRAY:
          List<Object> items = new ArrayList<>();
          node.forEach(one -> items.add(value(schema.getElementType(), one)));
          return items;
        case MAP:
          Map<String, Object> entries = new HashMap<>();
          node.properties().forEach(e -> entries.put(e.getKey(), value(schema.getValueType(), e.getValue())));
          return entries;
        case ENUM:
          return new GenericData.EnumSymbol(schema, node.asText());
        case BYTES:
          return ByteBuffer.wrap(Base64.getDecoder().decode(node.asText()));
        case LONG:
          return node.asLong();
        case DOUBLE:
          return node.asDouble();
        case FLOAT:
          return (float) node.asDouble();
        case BOOLEAN:
          return node.asBoolean();
        default:
          return node.asText();
      }
    }

    static JsonNode plain(Object value) {
      if (value instanceof GenericRecord) {
        GenericRecord record = (GenericRecord) value;
        ObjectNode row = JSON.createObjectNode();
        record.getSchema().getFields().forEach(f -> row.set(f.name(), plain(record.get(f.name()))));
        return row;
      }
      if (value instanceof Map) {
        ObjectNode entries = JSON.createObjectNode();
        ((Map<?, ?>) value).forEach((key, one) -> entries.set(key.toString(), plain(one)));
        return entries;
      }
      if (value instanceof List) {
        var items = JSON.createArrayNode();
        ((List<?>) value).forEach(one -> items.add(plain(one)));
        return items;
      }
      if (value instanceof ByteBuffer) {
        byte[] bytes = new byte[((ByteBuffer) value).remaining()];
        ((ByteBuffer) value).duplicate().get(bytes);
        return JSON.valueToTree(bytes);
      }
      if (value instanceof Number || value instanceof Boolean || value == null) {
        return JSON.valueToTree(value);
      }
      if (value instanceof java.time.Instant) {
        return JSON.valueToTree(((java.time.Instant) value).toEpochMilli());
      }
      return JSON.valueToTree(value.toString());
    }
  }

  /** The trip's message, as generated code has it: without one Apicurio's deserializer does not know the message. */
  public static class Trip {
    static Descriptor descriptor;

    public static DynamicMessage parseFrom(InputStream data) throws IOException {
      return DynamicMessage.parseFrom(descriptor, data);
    }
  }

  static class ProtobufForm implements Form {
    final Serializer<Message> serializer;
    final Deserializer<Message> deserializer;

    ProtobufForm(Registry registry, Path files) throws Exception {
      var set = FileDescriptorSet.parseFrom(Files.readAllBytes(files.resolve("trip.desc")));
      Trip.descriptor = FileDescriptor.buildFrom(set.getFile(0), new FileDescriptor[0]).findMessageTypeByName("Trip");
      Map<String, Object> more = Map.of("apicurio.registry.deserializer.value.return-class", Trip.class.getName());
      serializer = configured(new ProtobufKafkaSerializer<>(registry), Map.of());
      deserializer = configured(new ProtobufKafkaDeserializer<>(registry), more);
    }

    public byte[] encode(String topic, JsonNode row) throws Exception {
      var builder = DynamicMessage.newBuilder(Trip.descriptor);
      JsonFormat.parser().merge(row.toString(), builder);
      return serializer.serialize(topic, builder.build());
    }

    public JsonNode decode(String topic, byte[] data) throws Exception {
      Message message = deserializer.deserialize(topic, data);
      return JSON.readTree(JsonFormat.printer().alwaysPrintFieldsWithNoPresence().print(message));
    }
  }

  static class JsonForm implements Form {
    final Serializer<JsonNode> serializer;
    final Deserializer<JsonNode> deserializer;

    JsonForm(Registry registry) {
      Map<String, Object> more = Map.of("apicurio.registry.artifact.schema.location", "trip.json");
      serializer = configured(new JsonSchemaKafkaSerializer<>(registry), more);
      deserializer = configured(new JsonSchemaKafkaDeserializer<>(registry), more);
    }

    public byte[] encode(String topic, JsonNode row) {
      return serializer.serialize(topic, row);
    }

    public JsonNode decode(String topic, byte[] data) {
      return deserializer.deserialize(topic, data);
    }
  }

  static <T> Serializer<T> configured(Serializer<T> serializer, Map<String, Object> more) {
    Map<String, Object> settings = new HashMap<>(SETTINGS);
    settings.putAll(more);
    serializer.configure(settings, false);
    return serializer;
  }

  static <T> Deserializer<T> configured(Deserializer<T> deserializer, Map<String, Object> more) {
    Map<String, Object> settings = new HashMap<>(SETTINGS);
    settings.putAll(more);
    deserializer.configure(settings, false);
    return deserializer;
  }

  public static void main(String[] args) throws Exception {
    Path files = Path.of(args[0]);
    RestService rest = new RestService(args[2]);
    Form form = switch (args[3]) {
      case "avro" -> new AvroForm(new Registry(rest, "AVRO", null), files);
      case "protobuf" -> new ProtobufForm(
          new Registry(rest, "PROTOBUF", Files.readString(files.resolve("trip.proto"))), files);
      default -> new JsonForm(new Registry(rest, "JSON", null));
    };
    List<String> more = List.of(args).subList(5, args.length);
    if (args[4].equals("write")) {
      write(args[1], form, more.get(0));
    } else {
      read(args[1], form, Integer.parseInt(more.get(0)), more.subList(1, more.size()));
    }
  }

  static void write(String servers, Form form, String topic) throws Exception {
    Map<String, Object> settings = Map.of("bootstrap.servers", servers);
    try (var producer = new KafkaProducer<>(settings, new ByteArraySerializer(), new ByteArraySerializer())) {
      for (String line : new String(System.in.readAllBytes(), "UTF-8").strip().split("\n")) {
        producer.send(new ProducerRecord<>(topic, form.encode(topic, JSON.readTree(line)))).get();
      }
    }
  }

  static void read(String servers, Form form, int count, List<String> topics) throws Exception {
    Map<String, Object> settings = Map.of("bootstrap.servers", servers, "auto.offset.reset", "earliest");
    try (var consumer = new KafkaConsumer<>(settings, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
      List<TopicPartition> partitions = new ArrayList<>();
      topics.forEach(t -> consumer.partitionsFor(t).forEach(p -> partitions.add(new TopicPartition(t, p.partition()))));
      consumer.assign(partitions);
      for (int left = count * topics.size(); left > 0; ) {
        for (var record : consumer.poll(Duration.ofSeconds(10))) {
          ObjectNode line = JSON.createObjectNode().put("topic", record.topic());
          line.set("row", form.decode(record.topic(), record.value()));
          System.out.println(line);
          left--;
        }
      }
    }
  }
}
