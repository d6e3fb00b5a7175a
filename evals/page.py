"""Comparisons as one HTML page that needs no network: charts, a sortable table, and how to read them."""

import json
from collections.abc import Sequence

import numpy as np
from plotly.offline import get_plotlyjs
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from playcall.evals.comparison import Comparison
from playcall.strategies import Misuse


def report(comparisons: Sequence[Comparison]) -> str:
    """One self-contained page, which its script draws; no text in the data can run. Raises Misuse for no comparison."""
    if not comparisons:
        raise Misuse("There is nothing to report: pass at least one Comparison, as compare(read_table(...)) returns.")
    data = json.dumps([c.to_dict() | {"arms": _order(c)} for c in comparisons], allow_nan=False).replace("<", "\\u003c")
    return f"{_PAGE}{data}</script><script>{get_plotlyjs()}</script><script>{_DRAW}</script></body></html>"


def _order(c: Comparison) -> list[str]:
    """The best arms, at most 40, those that fail on the same tasks side by side."""
    arms = [r.strategy for r in sorted(c.rows, key=lambda r: -r.quality) if r.kind == "arm"][:40]
    if len(arms) < 2:
        return arms
    apart = 1 - np.array([[c.error_correlation[a][b] for b in arms] for a in arms])
    tree = linkage(squareform(np.clip(apart, 0, 2), checks=False), "average", optimal_ordering=True)
    return [arms[i] for i in leaves_list(tree)]


_PAGE = """<!DOCTYPE html><html lang=en><head><meta charset=utf-8><meta name=viewport content="width=device-width">
<meta http-equiv=Content-Security-Policy content="default-src data: 'unsafe-inline'"><title>Strategies compared</title>
<style>figure{margin:0;min-width:0}:root{color-scheme:light dark}@media(prefers-color-scheme:dark){.chart{
filter:invert(.93) hue-rotate(180deg)}}body{margin:auto;padding:16px;max-width:1160px;font:15px/1.5 system-ui,
sans-serif;overflow-wrap:anywhere}h3{margin:32px 0 4px}h3::first-letter{text-transform:uppercase}li:only-child{
display:none}figcaption,caption,.note{opacity:.75;font-size:14px;margin:4px 0}.loud{background:#b34700;color:#fff;
padding:8px;font-weight:700}.charts{display:grid;gap:0 24px;grid-template-columns:repeat(auto-fill,minmax(min(100%,
440px),1fr))}.charts>:first-child{grid-column:1/-1}.textpoint text{paint-order:stroke;stroke:#fff;stroke-width:3px}
.scroll{overflow:auto}table{border-collapse:collapse;font-size:13px;width:100%;overflow-wrap:normal}th{
min-width:64px}tbody th{min-width:130px;font-weight:400}th,td{padding:5px 6px;border-bottom:1px solid #8885;
vertical-align:top;text-align:right}td{white-space:nowrap;font-variant-numeric:tabular-nums}caption,
tr>:nth-child(-n+2){text-align:left}.family th,.yours th{font-weight:700}th button{all:unset;cursor:pointer}
th button:focus-visible{outline:2px solid}[aria-sort=ascending] button::after{content:" ▲"}
[aria-sort=descending] button::after{content:" ▼"}</style></head><body>
<h1>Strategies compared</h1><nav aria-label=Contents><ol></ol></nav><script type=application/json>"""
_DRAW = r"""const phone = innerWidth < 600, lacks = x => x == null || x === false;
const NAMES = {strategy: 'strategy', kind: 'kind', quality: 'quality, %', cost_per_1000: 'cost, USD per 1,000 tasks',
  latency_mean: 'mean latency, s', latency_p95: 'p95 latency, s', calls: 'calls per task',
  difference: 'points to the best single arm', frontier: 'on the frontier'};
const KINDS = {arm: ['circle', 6, '#98a2ad'], bound: ['triangle-up', 11, '#a3458c'], family: ['diamond', 10, '#0072b2'],
  yours: ['star', 14, '#d55e00']}, TICKS = [...Array(24).keys()].map(k => +`${k % 2 ? 3 : 1}e${(k >> 1) - 6}`);
const chosen = r => /family|yours/.test(r.kind), safe = s => s.replace(/[&<>]/g, c => `&#${c.charCodeAt()};`);
const short = (s, most = 30) => safe(s.length < most ? s : s.slice(0, most - 10) + '…' + s.slice(-9));
const wrap = s => safe(s.replace(/(.{1,44})( |$)|(.{44})/g, '$1$3\n')).replace(/\n/g, '<br>');
const add = (to, tag, text, as) => Object.assign(to.appendChild(document.createElement(tag)), {textContent: text}, as);
function text(r, f) {
  const x = r[f], points = end => (f === 'difference' && r[f + end] > 0 ? '+' : '') + (100 * r[f + end]).toFixed(1);
  if (f + '_low' in r) return `${points('')} [${points('_low')}, ${points('_high')}]`;
  return x === true ? 'yes' : x === false ? '' : x?.toFixed ? x < 100 ? x.toPrecision(3) : x.toFixed(0) : x ?? '–';
}
function table(to, rows) {
  add(to, 'caption', 'Intervals are 95%; press a heading to sort.');
  const head = add(add(to, 'thead'), 'tr'), body = add(to, 'tbody');
  const trs = new Map(rows.map(r => [r, add(body, 'tr', '', {className: r.kind, title: r.words})]));
  for (const [r, tr] of trs) for (const f in NAMES) add(tr, f === 'strategy' ? 'th' : 'td', text(r, f));
  for (const f in NAMES) add(add(head, 'th'), 'button', NAMES[f]).onclick = ({target: {parentNode: th}}) => {
    const sign = th.ariaSort === 'ascending' ? -1 : 1;
    for (const other of head.cells) other.ariaSort = other !== th ? null : sign > 0 ? 'ascending' : 'descending';
    rows.sort(({[f]: a}, {[f]: b}) => lacks(a) - lacks(b) || sign * (a?.localeCompare?.(b) ?? a - b));
    body.append(...rows.map(r => trs.get(r)));
  };
}
function draw(to, title, say, height, data, xaxis, yaxis) {
  const figure = add(to, 'figure'), axis = {automargin: true, gridcolor: '#dde2e7', zeroline: false, ticks: ''};
  add(figure, 'h3', title); const box = add(figure, 'div', '', {className: 'chart', role: 'img', ariaLabel: title});
  Plotly.newPlot(box, data, {height, margin: {l: 8, r: 8, t: 10, b: 8}, paper_bgcolor: '#0000', plot_bgcolor: '#0000',
    legend: {orientation: 'h', y: -64 / height, yanchor: 'top'}, hoverlabel: {bgcolor: '#fff', align: 'left'},
    font: {family: 'system-ui, sans-serif', color: '#1a1d21'}, hovermode: 'closest', dragmode: !phone && 'zoom',
    xaxis: {...axis, ...xaxis}, yaxis: {...axis, ...yaxis}}, {responsive: true, displayModeBar: false});
  add(figure, 'figcaption', say), label(box), box.on('plotly_afterplot', () => label(box));
}
function label(box) {  // each name beside its point, or above its bar, where it covers nothing; else hidden
  const rect = e => e.getBoundingClientRect(), frame = rect(box.querySelector('.nsewdrag'));
  const bars = [...box.querySelectorAll('.yerror')], spots = [[-1, -1], [1, 1], [-1, 1], [1, -1], [0, -2 - !!bars[0]]];
  const taken = [...box.querySelectorAll('.point'), ...bars].map(rect), line = box.querySelector('.js-line');
  for (let s = line?.getTotalLength(), p; s > 0; s -= 5)
    p = line.getPointAtLength(s), taken.push(new DOMRect(frame.x + p.x, frame.y + p.y));
  const within = a => a.left > frame.left && a.right < frame.right && a.top > frame.top && a.bottom < frame.bottom;
  const free = a => taken.every(b => a.right < b.left || b.right < a.left || a.bottom < b.top || b.bottom < a.top);
  for (const name of box.querySelectorAll('.textpoint text')) {
    const {x, y, width: w, height: h} = (name.style.translate = 'none', rect(name));
    const all = spots.map(([u, v]) => new DOMRect(x + u * (w / 2 + 7), y + v * (h / 2 + 5), w, h));
    const spot = y > frame.top && y + h < frame.bottom && all.find(a => within(a) && free(a));
    name.style.visibility = spot ? 'visible' : 'hidden';
    if (spot) taken.push(spot), name.style.translate = `${spot.x - x}px ${spot.y - y}px`;
  }
}
function axis(rows, f) {  // quality from where the strategies have a third of it; wide ranges by logarithms
  const least = (f, some = rows) => Math.min(...some.map(r => r[f])), most = f => Math.max(...rows.map(r => r[f]));
  const top = 100 * most('quality_high'), start = 300 * least('quality_low', rows.filter(chosen)) - 2 * top;
  const title = {text: NAMES[f], standoff: 8}, low = Math.max(isFinite(start) && start, 100 * least('quality_low'));
  if (f === 'quality') return {title, range: [low - 1, top + 1]};
  if (!(least(f) > 0 && most(f) > 20 * least(f))) return {title};
  return {title: {...title, text: NAMES[f] + ' (log scale)'}, type: 'log', tickvals: TICKS, tickformat: ',~r'};
}
function scatter(to, all, x, y) {
  const rows = all.filter(r => r[x] != null && r[y] != null), value = f => r => r[f] * (f === 'quality' ? 100 : 1);
  const at = some => ({x: some.map(value(x)), y: some.map(value(y)), hoverinfo: 'skip', visible: some.length > 0});
  const line = rows.filter(r => r.frontier && x !== 'latency_mean').sort((a, b) => b[x] - a[x]), v = axis(rows, y);
  const data = [{...at(line), mode: 'lines', name: 'frontier', line: {shape: 'vh', width: 1.5, color: '#56606b'}}];
  for (const [name, [symbol, size, color]] of Object.entries(KINDS)) {
    const some = rows.filter(r => r.kind === name), gap = end => some.map(r => 100 * Math.abs(r[end] - r.quality));
    const hovertext = some.map(r => `<b>${wrap(r.strategy)}</b>${wrap(r.words)}` +
      Object.keys(NAMES).slice(2, -1).map(f => `${NAMES[f]}: ${text(r, f)}`).join('<br>'));
    data.push({...at(some), mode: 'markers', name, marker: {symbol, size, color}, hoverinfo: 'text', hovertext, error_y:
      {visible: y === 'quality', array: gap('quality_high'), arrayminus: gap('quality_low'), width: 0, thickness: 1}});
  }
  const named = [...line, ...rows.filter(r => chosen(r) && !line.includes(r))], textfont = {size: 11};
  data.push({...at(named), mode: 'text', text: named.map(r => short(r.strategy)), textfont, showlegend: false});
  const out = all.length - rows.length, below = rows.filter(r => 100 * r.quality < v.range?.[0]);
  const say = [y === 'quality' ? 'Up and left is better; bars are 95% intervals.' : 'Down and left is better.',
    line[0] && 'On the line no other strategy is as good for less.', out && `${out} not recorded, only in the table.`,
    below[0] && `${below.length} below the edge: double-click to see them.`].filter(s => s).join(' ');
  draw(to, [y, x].map(f => NAMES[f].split(',')[0]).join(' against '), say, line[0] ? 520 : 420, data, axis(rows, x), v);
}
function heat(to, arms, all, errors, few = arms.length < 13) {
  const ticks = {tickvals: [...arms.keys()], ticktext: arms.map(a => short(a, phone ? 20 : 30) + ' '), showgrid: false};
  const z = arms.map(a => arms.map(b => a === b ? null : errors[a][b])), zmax = Math.max(.5, ...z.flat().map(Math.abs));
  const say = `Red pairs fail on the same tasks, blue ones on different tasks${all > 40 ? '; the best 40 arms' : ''}.`;
  const trace = {type: 'heatmap', z, zmin: -zmax, zmax, xgap: +few, ygap: +few, texttemplate: few ? '%{z:.2f}' : '',
    colorscale: [[0, '#2166ac'], [.5, '#f4f5f6'], [1, '#b2182b']], colorbar: {thickness: 9}, hoverongaps: false,
    hovertemplate: '%{y}<br>%{x}<br>correlation %{z:.2f}<extra></extra>'}, yaxis = {...ticks, autorange: 'reversed'};
  draw(to, 'which arms fail together', say, 200 + 17 * arms.length, [trace], {...ticks, showticklabels: !phone}, yaxis);
}
for (const [i, c] of JSON.parse(document.querySelector('script').textContent).entries()) {
  const to = add(document.body, 'section', '', {id: 's' + i}), free = c.rows.filter(r => r.cost_per_1000 == null);
  const [families, yours, arms] = ['family', 'yours', 'arm'].map(kind => c.rows.filter(r => r.kind === kind).length);
  const cost = free.some(r => r.kind === 'family') ? 'calls' : 'cost_per_1000';
  add(add(document.querySelector('ol'), 'li'), 'a', c.name, {href: '#s' + i}), add(to, 'h2', c.name);
  add(to, 'p', `${families} families, ${yours ? yours + ' of yours, ' : ''}${arms} single arms on the same ` +
    `${c.tasks} tasks; the best single arm${cost !== 'calls' && free[0] ? ' of known cost' : ''} is ${c.single_arm}.`);
  for (const note of c.notes) add(to, 'p', note, {className: note.includes('THE SCORES') ? 'loud' : 'note'});
  const charts = add(to, 'div', '', {className: 'charts'}); scatter(charts, c.rows, cost, 'quality');
  if (c.rows.some(r => r.latency_mean)) for (const y of ['quality', cost]) scatter(charts, c.rows, 'latency_mean', y);
  else add(to, 'p', 'Latencies were not recorded, so no chart shows them.');
  add(to, 'h3', 'all figures'), table(add(add(to, 'div', '', {className: 'scroll', tabIndex: 0}), 'table'), c.rows);
  if (c.arms[1]) heat(to, c.arms, arms, c.error_correlation);
}"""
