// Sends records as KafkaJS and its registry client do, which share no code with Topiclake.
// Standard input: {"broker", "registry", "topic", "schemas": [text], "records": [[number of schema, value]],
// "poison": [base64 or null]}. Partition 0 gets the poison, the others follow one by one.
const { Kafka, logLevel } = require('kafkajs')
const { SchemaRegistry, SchemaType } = require('@kafkajs/confluent-schema-registry')

async function publish({ broker, registry, topic, schemas, records, poison }) {
  const client = new SchemaRegistry({ host: registry })
  const ids = []
  for (const schema of schemas) {
    const registered = await client.register({ type: SchemaType.AVRO, schema }, { subject: `${topic}-value` })
    ids.push(registered.id)
  }
  const messages = await Promise.all(
    records.map(async ([schema, value], number) => ({
      partition: number % 3,
      value: await client.encode(ids[schema], value),
    })),
  )
  for (const value of poison) {
    messages.push({ partition: 0, value: value === null ? null : Buffer.from(value, 'base64') })
  }
  const kafka = new Kafka({ brokers: [broker], logLevel: logLevel.ERROR })
  const admin = kafka.admin()
  await admin.connect()
  await admin.createTopics({ topics: [{ topic, numPartitions: 3 }], waitForLeaders: true })
  await admin.disconnect()
  const producer = kafka.producer()
  await producer.connect()
  await producer.send({ topic, messages })
  await producer.disconnect()
}

publish(JSON.parse(require('fs').readFileSync(0, 'utf8'))).catch((error) => {
  console.error(error)
  process.exit(1)
})
