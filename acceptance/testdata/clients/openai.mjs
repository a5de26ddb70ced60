// The official openai client against a running Conclave: BASE_URL and API_KEY are those of the gateway. It prints one line of
// JSON with what it saw.
import OpenAI, { NotFoundError, AuthenticationError } from "openai";

const client = new OpenAI({ baseURL: process.env.BASE_URL + "/v1", apiKey: process.env.API_KEY, maxRetries: 0 });
const question = { role: "user", content: "What time is it in Tokyo?" };
const seen = {};

seen.models = (await client.models.list()).data.map((m) => m.id);

const { data: whole, response } = await client.chat.completions.create({ model: "assistant", messages: [question] }).withResponse();
seen.answer = whole.choices[0].message.content;
seen.usage = whole.usage.total_tokens;
const session = response.headers.get("x-conclave-session");

const next = { model: "assistant", stream: true, stream_options: { include_usage: true }, messages: [question, { role: "assistant", content: seen.answer }, { role: "user", content: "What time is it in Lisbon?" }] };
const { data: stream, response: streamed } = await client.chat.completions.create(next).withResponse();
seen.streamed = "";
seen.thinking = "";
for await (const chunk of stream) {
  seen.streamed += chunk.choices[0]?.delta?.content ?? "";
  seen.thinking += chunk.choices[0]?.delta?.reasoning_content ?? "";
  seen.finish = chunk.choices[0]?.finish_reason ?? seen.finish;
  seen.streamUsage = chunk.usage?.total_tokens ?? seen.streamUsage;
}
seen.sameSession = session === streamed.headers.get("x-conclave-session");

seen.helper = (await client.chat.completions.stream({ model: "assistant", messages: [question] }).finalChatCompletion()).choices[0].finish_reason;

const tools = [{ type: "function", function: { name: "roll", description: "rolls a die", parameters: { type: "object", properties: {} } } }];
seen.plain = (await client.chat.completions.create({ model: "assistant", tools, messages: [{ role: "user", content: "Roll a die." }] })).choices[0].finish_reason;

const response1 = await client.responses.create({ model: "assistant", input: "What time is it in Lima?" });
seen.response = response1.output_text;
const response2 = client.responses.stream({ model: "assistant", previous_response_id: response1.id, input: [{ role: "user", content: "What time is it in Oslo?" }] });
seen.responseDeltas = "";
for await (const event of response2) {
  if (event.type === "response.output_text.delta") seen.responseDeltas += event.delta;
}
const final = await response2.finalResponse();
seen.responseFinal = final.status === "completed" && final.output_text === seen.responseDeltas && final.usage.total_tokens > 0;

seen.embedding = (await client.embeddings.create({ model: "any", input: ["one", "two"] })).data.map((d) => d.embedding.length);

try {
  await client.chat.completions.create({ model: "gpt", messages: [question] });
} catch (e) {
  seen.unknownModel = e instanceof NotFoundError && e.code;
}
try {
  await new OpenAI({ baseURL: process.env.BASE_URL + "/v1", apiKey: "wrong", maxRetries: 0 }).models.list();
} catch (e) {
  seen.wrongKey = e instanceof AuthenticationError && e.code;
}
console.log(JSON.stringify(seen));
