// Writes and reads trips with @kafkajs/confluent-schema-registry and KafkaJS.
//
//   node client.js SERVERS REGISTRY FORMAT write TOPIC     the rows come from stdin, one JSON object per line
//   node client.js SERVERS REGISTRY FORMAT read COUNT TOPIC...
const fs = require("fs")
const path = require("path")
const { Kafka, logLevel } = require("kafkajs")
const { SchemaRegistry, SchemaType } = require("@kafkajs/confluent-schema-registry")

const FILES = { avro: ["AVRO", "trip.avsc"], protobuf: ["PROTOBUF", "trip.proto"], "json-schema": ["JSON", "trip.json"] }
const [servers, host, format, verb, ...rest] = process.argv.slice(2)
const kafka = new Kafka({ brokers: servers.split(","), logLevel: logLevel.ERROR })
const registry = new SchemaRegistry({ host })

function native(row) {
  const bytes = format === "json-schema" ? row.raw : Buffer.from(row.raw, "base64")
  const note = format === "protobuf" && row.note === null ? {} : { note: row.note }
  const level = format === "protobuf" ? ["LOW", "HIGH"].indexOf(row.level) : row.level
  const { note: _, ...others } = row
  return { ...others, ...note, level, raw: bytes }
}

function plain(value) {
  const row = format === "protobuf" ? value.constructor.toObject(value, { longs: Number, enums: String, bytes: String, arrays: true, objects: true, defaults: true }) : { ...value }
  if (Buffer.isBuffer(row.raw)) row.raw = row.raw.toString("base64")
  if (format === "protobuf" && !Object.hasOwn(value, "note")) row.note = null
  delete row._note
  return row
}

async function write(topic) {
  const [kind, file] = FILES[format]
  const schema = fs.readFileSync(path.join(__dirname, file), "utf8")
  const { id } = await registry.register({ type: SchemaType[kind], schema }, { subject: `${topic}-value` })
  const rows = fs.readFileSync(0, "utf8").trim().split("\n").map((line) => JSON.parse(line))
  const messages = []
  for (const row of rows) {
    const value = await registry.encode(id, native(row))
    // The package leaves out the index of the message, which is a part of the framing.
    const framed = format === "protobuf" ? Buffer.concat([value.subarray(0, 5), Buffer.from([0]), value.subarray(5)]) : value
    messages.push({ value: framed })
  }
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages })
  await producer.disconnect()
}

async function read(count, topics) {
  const consumer = kafka.consumer({ groupId: `javascript-${process.pid}` })
  await consumer.connect()
  await consumer.subscribe({ topics, fromBeginning: true })
  let left = Number(count) * topics.length
  await new Promise((resolve, reject) => {
    consumer.on(consumer.events.CRASH, ({ payload }) => reject(payload.error))
    consumer.run({
      eachMessage: async ({ topic, message }) => {
        try {
          const row = plain(await registry.decode(message.value))
          console.log(JSON.stringify({ topic, row }))
        } catch (error) {
          reject(error)
        }
        left -= 1
        if (left === 0) resolve()
      },
    })
  })
  await consumer.disconnect()
}

const work = verb === "write" ? write(rest[0]) : read(rest[0], rest.slice(1))
work.catch((error) => {
  console.error(error)
  process.exit(1)
})
