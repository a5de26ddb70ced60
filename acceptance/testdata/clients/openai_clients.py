"""Clients of the OpenAI API from PyPI: the official one, LangChain, llm and litellm, each unchanged."""

import json
import os
import subprocess
import sys
import tempfile

import litellm
import llm
import openai
from langchain_openai import ChatOpenAI, OpenAIEmbeddings

# tiktoken, with which LangChain makes tokens, fetches its vocabulary; litellm brings it.
os.environ["TIKTOKEN_CACHE_DIR"] = os.path.join(os.path.dirname(litellm.__file__), "litellm_core_utils", "tokenizers")
base, key = os.environ["BASE_URL"] + "/v1", os.environ["API_KEY"]
out = {}


def ask(city):
    return [{"role": "user", "content": f"What time is it in {city}?"}]


client = openai.OpenAI(base_url=base, api_key=key, max_retries=0)
out["openai"] = {
    "models": sorted(m.id for m in client.models.list()),
    "model": client.models.retrieve("assistant").id,
    "answer": client.chat.completions.create(model="assistant", messages=ask("Tokyo")).choices[0].message.content,
    "streamed": "".join(
        c.choices[0].delta.content or ""
        for c in client.chat.completions.create(model="assistant", messages=ask("Lima"), stream=True)
        if c.choices
    ),
    "embedding": len(client.embeddings.create(model="embeddings", input="a b").data[0].embedding),
}

chat = ChatOpenAI(base_url=base, api_key=key, model="assistant", max_retries=0)
out["langchain"] = {
    "answer": chat.invoke("What time is it in Tokyo?").content,
    "streamed": "".join(c.content for c in chat.stream("What time is it in Lima?")),
    "embedding": len(OpenAIEmbeddings(base_url=base, api_key=key, model="embeddings").embed_query("a b")),
}

options = {"model": "openai/assistant", "api_base": base, "api_key": key}
out["litellm"] = {
    "answer": litellm.completion(messages=ask("Tokyo"), **options).choices[0].message.content,
    "streamed": "".join(
        c.choices[0].delta.content or "" for c in litellm.completion(messages=ask("Lima"), stream=True, **options)
    ),
    "embedding": len(litellm.embedding(**{**options, "model": "openai/embeddings"}, input=["a b"]).data[0]["embedding"]),
}

with tempfile.TemporaryDirectory() as home:
    with open(os.path.join(home, "extra-openai-models.yaml"), "w") as f:
        f.write(f"- model_id: conclave\n  model_name: assistant\n  api_base: {base}\n  api_key_name: conclave\n")
    env = {**os.environ, "LLM_USER_PATH": home, "OPENAI_API_KEY": key}

    def run(*args):
        done = subprocess.run([sys.executable, "-m", "llm", "-m", "conclave", "--key", key, *args],
                              env=env, capture_output=True, text=True, timeout=60)
        return done.stdout + done.stderr

    out["llm"] = {"answer": run("--no-stream", "What time is it in Tokyo?"), "streamed": run("What time is it in Lima?")}

print(json.dumps(out))
