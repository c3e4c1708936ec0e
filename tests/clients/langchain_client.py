"""What LangChain's ChatOpenAI makes of an edge: as openai_client.py, which says what is asked and told. Chat only."""
import json
import sys

import openai
from langchain_openai import ChatOpenAI

base_url, cases = sys.argv[1], json.loads(sys.argv[2])
result = {}
for case in cases:
    if case.get("call", "chat") != "chat":
        continue
    seen = result[case["name"]] = {"text": "", "error": None}
    more = {"api_key": case["key"]} if "key" in case else {}
    model = ChatOpenAI(
        base_url=base_url,
        model=case.get("model", "m"),
        max_retries=case.get("retries", 0),
        timeout=60,
        stream_usage=bool(case.get("usage")),
        extra_body=case["body"],
        **more,
    )
    try:
        if case.get("stream"):
            whole = None
            for chunk in model.stream("Hello from LangChain: grüß dich ✓"):
                seen["text"] += chunk.text if isinstance(chunk.text, str) else chunk.text()
                whole = chunk if whole is None else whole + chunk
        else:
            whole = model.invoke("Hello from LangChain: grüß dich ✓")
            seen["text"] = whole.content
        if whole.usage_metadata:
            seen["usage"] = whole.usage_metadata["output_tokens"]
        seen["tools"] = [
            {"id": call["id"], "name": call["name"], "arguments": json.dumps(call["args"])} for call in whole.tool_calls
        ]
    except openai.APIStatusError as error:
        seen["error"] = {"status": error.status_code, "code": error.code, "id": bool(error.request_id)}
    except openai.APIError as error:
        seen["error"] = {"status": None, "code": error.code, "kind": type(error).__name__}
    except Exception as error:  # noqa: BLE001: a broken connection surfaces as whatever the transport raises
        seen["error"] = {"status": None, "code": None, "kind": type(error).__name__}
print(json.dumps(result))
