// Writes and reads trips with franz-go and its registry client pkg/sr.
//
//	client SERVERS REGISTRY FORMAT write TOPIC     the rows come from stdin, one JSON object per line
//	client SERVERS REGISTRY FORMAT read COUNT TOPIC...
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"

	"github.com/bufbuild/protocompile"
	"github.com/hamba/avro/v2"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"
)

type place struct {
	Name string  `avro:"name" json:"name"`
	Lat  float32 `avro:"lat" json:"lat"`
}

type trip struct {
	ID      int64            `avro:"id" json:"id"`
	Zone    string           `avro:"zone" json:"zone"`
	Minutes float64          `avro:"minutes" json:"minutes"`
	Good    bool             `avro:"good" json:"good"`
	Note    *string          `avro:"note" json:"note"`
	Level   string           `avro:"level" json:"level"`
	Tags    []string         `avro:"tags" json:"tags"`
	Counts  map[string]int64 `avro:"counts" json:"counts"`
	At      int64            `avro:"at" json:"at"`
	Raw     []byte           `avro:"raw" json:"raw"`
	Place   place            `avro:"place" json:"place"`
}

// form is one kind of schemas: its text, and the way from a row's JSON to bytes and back.
type form struct {
	file   string
	kind   sr.SchemaType
	encode func(text string, row []byte) ([]byte, error)
	decode func(text string, data []byte) ([]byte, error)
	index  []int
}

func parsed(text string) protoreflect.MessageDescriptor {
	files := protocompile.SourceAccessorFromMap(map[string]string{"t.proto": text})
	compiler := protocompile.Compiler{Resolver: protocompile.WithStandardImports(&protocompile.SourceResolver{Accessor: files})}
	compiled, err := compiler.Compile(context.Background(), "t.proto")
	check(err)
	return compiled[0].Messages().Get(0)
}

var forms = map[string]form{
	"avro": {"trip.avsc", sr.TypeAvro, func(text string, row []byte) ([]byte, error) {
		var value trip
		if err := json.Unmarshal(row, &value); err != nil {
			return nil, err
		}
		return avro.Marshal(avro.MustParse(text), value)
	}, func(text string, data []byte) ([]byte, error) {
		var value trip
		if err := avro.Unmarshal(avro.MustParse(text), data, &value); err != nil {
			return nil, err
		}
		return json.Marshal(value)
	}, nil},
	"protobuf": {"trip.proto", sr.TypeProtobuf, func(text string, row []byte) ([]byte, error) {
		message := dynamicpb.NewMessage(parsed(text))
		if err := protojson.Unmarshal(row, message); err != nil {
			return nil, err
		}
		return proto.Marshal(message)
	}, func(text string, data []byte) ([]byte, error) {
		message := dynamicpb.NewMessage(parsed(text))
		if err := proto.Unmarshal(data, message); err != nil {
			return nil, err
		}
		return protojson.MarshalOptions{EmitUnpopulated: true}.Marshal(message)
	}, []int{0}},
	"json-schema": {"trip.json", sr.TypeJSON, func(_ string, row []byte) ([]byte, error) { return row, nil },
		func(_ string, data []byte) ([]byte, error) { return data, nil }, nil},
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func write(ctx context.Context, servers string, registry *sr.Client, own form, topic string) {
	text, err := os.ReadFile(own.file)
	check(err)
	subject, err := registry.CreateSchema(ctx, topic+"-value", sr.Schema{Schema: string(text), Type: own.kind})
	check(err)
	options := []sr.EncodingOpt{sr.EncodeFn(func(value any) ([]byte, error) { return own.encode(string(text), value.([]byte)) })}
	if own.index != nil {
		options = append(options, sr.Index(own.index...))
	}
	serde := new(sr.Serde)
	serde.Register(subject.ID, []byte(nil), options...)
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(servers, ",")...), kgo.DefaultProduceTopic(topic),
		kgo.ProducerBatchCompression(kgo.GzipCompression())) // the only one that KafkaJS can read
	check(err)
	defer client.Close()
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		value, err := serde.Encode([]byte(lines.Text()))
		check(err)
		check(client.ProduceSync(ctx, &kgo.Record{Value: value}).FirstErr())
	}
}

func read(ctx context.Context, servers string, registry *sr.Client, own form, count int, topics []string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(servers, ",")...), kgo.ConsumeTopics(topics...),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	check(err)
	defer client.Close()
	header := new(sr.ConfluentHeader)
	texts := map[int]string{}
	for left := count * len(topics); left > 0; {
		fetches := client.PollFetches(ctx)
		check(fetches.Err())
		for _, record := range fetches.Records() {
			id, data, err := header.DecodeID(record.Value)
			check(err)
			if own.index != nil {
				_, data, err = header.DecodeIndex(data, 8)
				check(err)
			}
			if _, ok := texts[id]; !ok {
				schema, err := registry.SchemaByID(ctx, id)
				check(err)
				texts[id] = schema.Schema
			}
			row, err := own.decode(texts[id], data)
			check(err)
			line, err := json.Marshal(map[string]any{"topic": record.Topic, "row": json.RawMessage(row)})
			check(err)
			fmt.Println(string(line))
			left--
		}
	}
}

func main() {
	ctx := context.Background()
	servers, own, verb, rest := os.Args[1], forms[os.Args[3]], os.Args[4], os.Args[5:]
	registry, err := sr.NewClient(sr.URLs(os.Args[2]))
	check(err)
	if verb == "write" {
		write(ctx, servers, registry, own, rest[0])
		return
	}
	count, err := strconv.Atoi(rest[0])
	check(err)
	read(ctx, servers, registry, own, count, rest[1:])
}
