"""The status page: one file without anything from elsewhere; it asks ``/status`` every two seconds."""

from __future__ import annotations

import base64
import hashlib
from typing import Final

_STYLE: Final = """
:root{color-scheme:light dark;--line:#8884;--soft:#8882;--bad:#d33;--good:#2a7;--warn:#c80}
*{box-sizing:border-box}
body{font:15px/1.45 system-ui,sans-serif;margin:0 auto;padding:1rem;max-width:60rem}
h1{font-size:1.2rem;margin:0 0 .2rem}h2{font-size:1rem;margin:1.4rem 0 .4rem}
p{margin:.2rem 0}.soft{opacity:.7}
dl{display:grid;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));gap:.5rem;margin:1rem 0}
dl div{background:var(--soft);border-radius:.4rem;padding:.4rem .6rem}
dt{font-size:.8rem;opacity:.7}dd{margin:0;font-variant-numeric:tabular-nums;overflow-wrap:anywhere}
.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{text-align:right;padding:.25rem .5rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child,td.text,th.text{text-align:left}
th{font-weight:600;font-size:.8rem}
.bad{color:var(--bad);font-weight:600}.good{color:var(--good)}.warn{color:var(--warn);font-weight:600}
"""

_SCRIPT: Final = """
const SHOWN = 500;
const $ = id => document.getElementById(id);
const shown = n => typeof n === 'number' ? n.toLocaleString('en') : String(n ?? '-');
const cell = (text, kind) => { const td = document.createElement('td'); td.textContent = shown(text);
  if (kind) td.className = kind; return td; };
const rows = (id, list) => $(id).replaceChildren(...list.map(cells => {
  const tr = document.createElement('tr'); tr.append(...cells); return tr; }));
const bytes = n => { let u = 0; while (n >= 1024 && u < 4) { n /= 1024; u++; }
  return (u ? n.toFixed(1) : n) + ' ' + ['B', 'KiB', 'MiB', 'GiB', 'TiB'][u]; };
const ago = s => s < 120 ? Math.floor(s) + ' s' : s < 7200 ? Math.floor(s / 60) + ' min' : Math.floor(s / 3600) + ' h';
let before = null;
function show(s, at) {
  const backlog = new Map(s.backlog.map(row => [row[0], row]));
  let lag = 0;
  for (const p of s.partitions) lag = Math.max(lag, s.commit_index - p[5]);
  const ill = s.partitions.filter(p => p[6] !== 'running'), well = s.partitions.filter(p => p[6] === 'running');
  const first = [...ill, ...well].slice(0, SHOWN);  // what stands still, then the others: a phone has its limits
  $('more').textContent = first.length < s.partitions.length ? shown(s.partitions.length - first.length) + ' more' : '';
  rows('partitions', first.map(p => {
    const [id, log, durable, applied, snapshot, global, state] = p;
    const used = backlog.get(id) || [id, 0, 0];
    return [cell(id), cell(log), cell(durable), cell(applied), cell(global),
      cell(log - applied, log - applied ? 'warn' : ''), cell(used[1]), cell(bytes(used[2])), cell(snapshot),
      cell(state, 'text ' + (state === 'running' ? 'good' : 'bad'))];
  }));
  rows('members', s.members.map(([id, address, connected, role]) => [
    cell(id + (id === s.node ? ' (this node)' : '') + (id === s.leader ? ' - leads' : '')),
    cell(address, 'text'), cell(role, 'text'), cell(connected ? 'connected' : 'not connected',
    'text ' + (connected ? 'good' : 'bad'))]));
  const rate = before && at > before.at ? (s.commit_index - before.index) * 1000 / (at - before.at) : 0;
  before = {index: s.commit_index, at};
  $('title').textContent = s.cluster + ' / ' + s.node;
  document.title = s.node + ' - ' + s.role;
  $('said').textContent = 'logboom ' + s.version + ', up ' + ago(s.uptime_s);
  const facts = [['role', s.role], ['leader', s.leader ?? 'nobody'], ['term', s.term],
    ['commit index', s.commit_index], ['entries/s', Math.round(rate)], ['apply lag', lag],
    ['backlog', shown(s.node_backlog[0]) + ' records, ' + bytes(s.node_backlog[1])],
    ['recovered', s.recovered ? 'yes' : 'no'], ['sessions', s.sessions], ['barriers waiting', s.waiters],
    ['scrub', 'pass ' + s.scrub.pass + ', ' + bytes(s.scrub.bytes) + ' of ' + bytes(s.scrub.of)],
    ['damage', (s.scrub.damaged - s.scrub.repaired) + ' open, ' + s.lost.length + ' lost']];
  $('facts').replaceChildren(...facts.map(([name, value]) => {
    const div = document.createElement('div'), dt = document.createElement('dt'), dd = document.createElement('dd');
    dt.textContent = name; dd.textContent = shown(value);
    if ((name === 'recovered' && value === 'no') || (name === 'leader' && value === 'nobody')) dd.className = 'bad';
    div.append(dt, dd); return div; }));
}
async function turn() {
  if (!document.hidden) {
    try {
      const answer = await fetch('status', {signal: AbortSignal.timeout(4000)});
      if (!answer.ok) throw new Error('HTTP ' + answer.status);
      show(await answer.json(), performance.now());
      $('trouble').textContent = '';
    } catch (error) { $('trouble').textContent = 'no answer: ' + error.message; }
  }
  setTimeout(turn, 2000);
}
turn();
"""

_HTML: Final = f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width,initial-scale=1">
<title>logboom</title><link rel="icon" href="data:,"><style>{_STYLE}</style></head><body>
<h1 id="title">logboom</h1><p class="soft" id="said"></p><p class="bad" id="trouble" role="status"></p>
<noscript>This page needs JavaScript; <a href="status">status</a> is the same as JSON.</noscript>
<dl id="facts"></dl>
<h2>Members</h2><div class="wide"><table><thead><tr><th>node</th><th class="text">clients reach it at</th>
<th class="text">role</th><th class="text">link</th></tr></thead><tbody id="members"></tbody></table></div>
<h2>Partitions</h2><div class="wide"><table><thead><tr><th>id</th><th>log</th><th>durable</th><th>applied</th>
<th>applied global</th><th>to apply</th><th>admitted</th><th></th><th>snapshot</th><th class="text">state</th></tr>
</thead><tbody id="partitions"></tbody></table></div>
<p class="soft" id="more"></p>
<p class="soft"><a href="metrics">metrics</a> · <a href="status">status</a> · <a href="readyz">readyz</a></p>
<script>{_SCRIPT}</script></body></html>
"""


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


PAGE: Final = _HTML.encode()
PAGE_HEADERS: Final = {
    # Only what is written above runs, and it may only ask this node: names in the status can do nothing.
    "Content-Security-Policy": (
        f"default-src 'none'; style-src {_digest(_STYLE)}; script-src {_digest(_SCRIPT)}; connect-src 'self'; "
        "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}
