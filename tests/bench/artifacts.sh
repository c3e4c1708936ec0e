# Sourced by scripts/bench: `artifacts`, a download through the agent's own path beside curl's.

# seconds COMMAND...: how long it takes.
seconds() {
  local began ended
  began=$(date +%s.%N); "$@"; ended=$(date +%s.%N)
  awk "BEGIN { printf \"%.4f\", $ended - $began }"
}

median() { sort -n | awk '{ a[NR] = $1 } END { print a[int((NR + 1) / 2)] }'; }

artifacts() {
  need_curl
  command -v nginx >/dev/null || [ -x /usr/sbin/nginx ] || packages nginx-light
  say "building"
  cargo build --release --quiet --package umbel-node --features simulation --example download
  local mib=${MIB:-2048} rounds=${ROUNDS:-5} listen place
  place=$(mktemp -d "${PLACE:-$out}/artifacts.XXXXXX")
  mkdir -p "$place/site/org/name/r1" "$place/quarantine" "$place/models" "$place/prefix/tmp"
  say "making $mib MiB"
  head -c "$mib"M /dev/urandom >"$place/site/org/name/r1/model"
  local sha; sha=$(sha256sum <"$place/site/org/name/r1/model" | cut -d' ' -f1)
  listen=127.0.0.1:$(port)
  cat >"$place/nginx.conf" <<CONF
worker_processes 1; daemon off; pid nginx.pid; error_log stderr error;
$([ "$(id -u)" = 0 ] && echo "user root;")
events { worker_connections 64; }
http {
  access_log off; sendfile on; tcp_nopush on;
  client_body_temp_path tmp/b; proxy_temp_path tmp/p; fastcgi_temp_path tmp/f; uwsgi_temp_path tmp/u; scgi_temp_path tmp/s;
  server { listen $listen; root $place/site; }
}
CONF
  PATH=$PATH:/usr/sbin nginx -p "$place/prefix" -c "$place/nginx.conf" 2>"$out/nginx.log" &
  pids+=($!)
  cat >"$place/node.toml" <<CONF
[node]
state_dir = "$place/state"
allow_volatile_state = true
[artifacts]
quarantine = "$place/quarantine"
reserve = "0B"
[artifacts.roots]
models = "$place/models"
[[source]]
name = "mirror"
kind = "mirror"
url = "http://$listen"
CONF
  local url=http://$listen/org/name/r1/model got=$place/got
  for _ in $(seq 100); do curl -sf -r 0-0 -o /dev/null "$url" && break; sleep 0.1; done
  fetch() { curl -sf -o "$got" "$url"; }
  fetch_synced() { curl -sf -o "$got" "$url" && sync "$got"; }
  local round ours
  for round in $(seq "$rounds"); do
    rm -rf "$got" "$place/models/"*; sync "$place"
    seconds fetch >>"$place/curl"; echo >>"$place/curl"
    rm -f "$got"; sync "$place"
    seconds fetch_synced >>"$place/synced"; echo >>"$place/synced"
    rm -f "$got"; sync "$place"
    ours=$("$bin/examples/download" "$place/node.toml" mirror org/name r1 model $((mib << 20)) "$sha")
    echo "$ours" >>"$place/ours"
    say "round $round: curl $(sed -n "$round"p "$place/curl") s, with sync $(sed -n "$round"p "$place/synced") s, ours $ours KiB"
  done
  local curl synced umbel peak
  curl=$(median <"$place/curl"); synced=$(median <"$place/synced"); umbel=$(cut -d' ' -f1 "$place/ours" | median)
  peak=$(cut -d' ' -f2 "$place/ours" | sort -n | tail -1)
  awk -v m="$mib" -v c="$curl" -v s="$synced" -v u="$umbel" -v p="$peak" 'BEGIN {
    printf "%-34s %10s %8s\n", "download of " m " MiB", "MiB/s", "of curl"
    printf "%-34s %10.0f %8.2f\n", "curl", m / c, 1
    printf "%-34s %10.0f %8.2f\n", "curl, then sync of its file", m / s, c / s
    printf "%-34s %10.0f %8.2f   (bound 0.9)\n", "ours: SHA-256, sync, rename, sync", m / u, c / u
    printf "%-34s %10.0f %8.2f\n", "ours beside curl with its sync", m / u, s / u
    printf "%-34s %10.1f MiB\n", "most memory of ours", p / 1024 }' | tee "$out/artifacts.txt"
  rm -rf "$place"
}
