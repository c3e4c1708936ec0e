"""The scenario of scripts/real-engine: text from a real model, a killed engine, an ended control plane.

real_engine.py DEV_JSON, as `umbel dev` writes it. Exits 0 only if everything is as it must be.
"""
import json
import os
import pathlib
import signal
import sys
import time

import openai

dev = json.load(open(sys.argv[1]))
edge, node, plane = dev["edges"][0], dev["nodes"][0], dev["control_plane"]
base = edge["api_url"].rstrip("/")
base = base if base.endswith("/v1") else base + "/v1"
key = pathlib.Path(edge["key_file"]).read_text().strip()
client = openai.OpenAI(base_url=base, api_key=key, max_retries=0, timeout=180)


def alive(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1][0] != "Z"
    except OSError:
        return False


def record():
    files = sorted(pathlib.Path(node["state_dir"], "engines").glob("*.json"))
    return json.loads(files[0].read_text())


def stream(tokens, prompt="Write a long story about a fox and a river."):
    return client.chat.completions.create(
        model=dev["model"], stream=True, max_tokens=tokens, temperature=0,
        messages=[{"role": "user", "content": prompt}],
    )


def texts(chunks):
    for chunk in chunks:
        if chunk.choices and chunk.choices[0].delta.content:
            yield chunk.choices[0].delta.content


def must(what, holds):
    print(("ok    " if holds else "WRONG ") + what, flush=True)
    if not holds:
        sys.exit(1)


processes = [plane["pid"], edge["pid"], node["pid"], record()["pid"]]
must(f"control plane, edge, node and engine are four processes: {processes}",
     len(set(processes)) == 4 and all(alive(p) for p in processes))

started = time.monotonic()
first, parts = None, []
for text in texts(stream(96)):
    first = first or time.monotonic() - started
    parts.append(text)
print("      the model wrote:", "".join(parts).replace("\n", " ")[:300], flush=True)
took = time.monotonic() - started
must(f"a stream of text: {len(parts)} pieces, the first after {first * 1e3:.0f} ms, {len(parts) / took:.0f} a second",
     len(parts) > 20)

answer = client.chat.completions.create(
    model=dev["model"], max_tokens=16, temperature=0, messages=[{"role": "user", "content": "Say hello."}])
must(f"an answer that is not a stream: {answer.choices[0].message.content!r}", bool(answer.choices[0].message.content))

engine = record()["pid"]
parts, error = [], None
try:
    for text in texts(stream(2000)):
        parts.append(text)
        if len(parts) == 5:
            os.kill(engine, signal.SIGKILL)
except openai.APIError as e:
    error = e
must(f"the engine (pid {engine}) is killed in mid-stream; after {len(parts)} pieces the client gets an error, not an end: "
     f"{type(error).__name__}: {error}", error is not None and len(parts) >= 5)
must("the engine's process is gone", not alive(engine))

text = "".join(texts(stream(16, "What is a river?")))
must(f"the next chat waits for the engine to be started anew: {text!r}", bool(text) and record()["pid"] != engine)

os.kill(plane["pid"], signal.SIGKILL)
deadline = time.monotonic() + 10
while alive(plane["pid"]) and time.monotonic() < deadline:
    time.sleep(0.05)
must("the control plane is ended", not alive(plane["pid"]))
text = "".join(texts(stream(16, "What is a fox?")))
must(f"the next chat works without it: {text!r}", bool(text))
