"""Comparisons as one HTML page that needs no network: charts, a sortable table, and how to read them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict
from html import escape

import numpy as np
from plotly.offline import get_plotlyjs
from scipy.cluster.hierarchy import leaves_list, linkage
from scipy.spatial.distance import squareform

from playcall.evals.compare import Comparison
from playcall.strategies import Misuse


def report(comparisons: Sequence[Comparison]) -> str:
    """One self-contained page; texts from the data are shown and never run. Raises Misuse where there is nothing."""
    if not comparisons:
        raise Misuse("There is nothing to report: pass at least one Comparison, as compare(read_table(...)) returns.")
    names = [escape(c.name) for c in comparisons]
    links = "".join(f"<li><a href=#s{i}>{name}</a>" for i, name in enumerate(names))
    contents = f"<nav aria-label=Contents><ol>{links}</ol></nav>" * (len(names) > 1)
    sections = "".join(f"<section id=s{i}>{_section(c)}</section>" for i, c in enumerate(comparisons))
    title, code = f"Strategies compared: {', '.join(names)}", f"<script>{get_plotlyjs()}</script><script>{_JS}</script>"
    return f"{_HEAD}<title>{title}</title><body><h1>Strategies compared</h1>{contents}{sections}{code}"


def _section(c: Comparison) -> str:
    """What is compared, in words, and the figures, which the page's script draws."""
    families, yours, arms = (sum(r.kind == kind for r in c.rows) for kind in ("family", "yours", "arm"))
    what = f"{families} families of strategies, {f'{yours} of yours, ' * (yours > 0)}{arms} single arms"
    costs = [r.cost_per_1000 is not None for r in c.rows]
    least = " with recorded costs" * (any(costs) and not all(costs))
    notes = "".join(f"<li{' class=loud' * ('THE SCORES' in note)}>{escape(note)}" for note in c.notes)
    best = [r.strategy for r in sorted(c.rows, key=lambda r: -r.quality) if r.kind == "arm"][:40]
    if arms > 1:  # those that fail on the same tasks side by side
        apart = 1 - np.array([[c.error_correlation[a][b] for b in best] for a in best])
        tree = linkage(squareform(np.clip(apart, 0, 2), checks=False), "average", optimal_ordering=True)
        best = [best[i] for i in leaves_list(tree)]
    errors = [[None if a == b else c.error_correlation[a][b] for b in best] for a in best]
    data = json.dumps({"rows": [asdict(r) for r in c.rows], "arms": best, "errors": errors}, allow_nan=False)
    data = data.replace("<", "\\u003c")  # no text in it ends the script
    return (
        f"<h2>{escape(c.name)}</h2><p>{what} on the same {c.tasks:,} tasks; the best single arm{least} is "
        f"<b>{escape(c.single_arm)}</b>.</p><ul>{notes}</ul><script type=application/json>{data}</script>"
    )


_HEAD = """<!DOCTYPE html><html lang=en><meta charset=utf-8><meta name=viewport content="width=device-width">
<meta http-equiv=Content-Security-Policy content="default-src data: 'unsafe-inline'"><style>
:root{color-scheme:light dark;--page:#fff;--ink:#1a1d21;--soft:#56606b;--line:#dde2e7;--loud:#fde8d0}
@media(prefers-color-scheme:dark){:root{--page:#121212;--ink:#e8eaed;--soft:#a3acb6;--line:#343a41;--loud:#5a3510}
.chart{filter:invert(.93) hue-rotate(180deg)}}body{margin:auto;padding:16px;max-width:1160px;background:var(--page);
color:var(--ink);font:15px/1.5 system-ui,sans-serif;overflow-wrap:anywhere}h2{margin:40px 0 8px}h3{margin:32px 0 4px}h3::first-letter{text-transform:uppercase}.charts>:first-child{grid-column:1/-1}
figure{margin:0;min-width:0}a{color:inherit}figcaption,caption,ul{color:var(--soft);font-size:14px}ul{padding-left:20px}
.loud{background:var(--loud);color:var(--ink);font-weight:700;padding:8px}small{display:block;font-weight:400}
.charts{display:grid;gap:0 24px;grid-template-columns:repeat(auto-fill,minmax(min(100%,440px),1fr))}.scroll{overflow:auto}
.textpoint text{paint-order:stroke;stroke:#fff;stroke-width:3px;font-size:11px!important}
table{border-collapse:collapse;font-size:13px;width:100%;overflow-wrap:normal}thead th{vertical-align:bottom}
th,td{padding:5px 8px;border-bottom:1px solid var(--line);vertical-align:top;text-align:right}tbody th{min-width:150px}
td{white-space:nowrap;font-variant-numeric:tabular-nums}caption,tr>:nth-child(-n+2){text-align:left}
th button{all:unset;cursor:pointer}th button:is(:hover,:focus-visible){text-decoration:underline}
[aria-sort=ascending] button::after{content:" ▲"}[aria-sort=descending] button::after{content:" ▼"}</style>"""
_JS = r"""
const NAMES = {strategy: 'strategy', kind: 'kind', quality: 'quality, %', cost_per_1000: 'cost per 1,000 tasks, USD',
  latency_mean: 'mean latency, s', latency_p95: 'p95 latency, s', calls: 'calls per task',
  difference: 'points to the best single arm', frontier: 'on the frontier'};
const KINDS = {arm: ['circle', 6, '#98a2ad'], bound: ['triangle-up', 11, '#a3458c'], family: ['diamond', 10, '#0072b2'],
  yours: ['star', 14, '#d55e00']}, TICKS = [...Array(12).keys()].flatMap(k => [+`1e${k - 6}`, +`3e${k - 6}`]);
const phone = innerWidth < 600, safe = s => s.replace(/[&<>]/g, c => `&#${c.charCodeAt()};`);
const short = s => safe(s.length < 30 ? s : s.slice(0, 16) + '…' + s.slice(-12)), chosen = r => /family|yours/.test(r.kind);
const wrap = s => safe(s.replace(/(.{1,44})( |$)|(.{44})/g, '$1$3\n')).replace(/\n/g, '<br>');
const add = (to, tag, text, more) => Object.assign(to.appendChild(document.createElement(tag)), {textContent: text, ...more});
function text(r, f) {
  const x = r[f], points = end => (f === 'difference' && r[f + end] > 0 ? '+' : '') + (100 * r[f + end]).toFixed(1);
  if (f + '_low' in r) return `${points('')} [${points('_low')}, ${points('_high')}]`;
  return x === true ? 'yes' : x === false ? '' : x?.toPrecision ? x < 100 ? x.toPrecision(3) : x.toFixed(0) : x ?? '–';
}
function table(to, rows) {
  const grid = add(add(to, 'div', '', {className: 'scroll', tabIndex: 0, role: 'region', ariaLabel: 'figures'}), 'table');
  add(grid, 'caption', 'Intervals are 95%. Press the name of a column to sort by it.');
  const head = add(add(grid, 'thead'), 'tr'), body = add(grid, 'tbody'), lacks = x => x == null || x === false;
  for (const r of rows) {
    r.tr = add(body, 'tr');
    for (const f in NAMES) add(r.tr, f === 'strategy' ? 'th' : 'td', text(r, f));
    if (r.kind !== 'arm') add(r.tr.cells[0], 'small', r.words);
  }
  for (const f in NAMES) add(add(head, 'th'), 'button', NAMES[f]).onclick = ({target: {parentNode: th}}) => {
    const sign = th.ariaSort === 'ascending' ? -1 : 1;
    for (const other of head.cells) other.ariaSort = other !== th ? null : sign > 0 ? 'ascending' : 'descending';
    rows.sort(({[f]: a}, {[f]: b}) => lacks(a) - lacks(b) || sign * (a?.localeCompare?.(b) ?? a - b));
    body.append(...rows.map(r => r.tr));
  };
}
function draw(to, title, say, height, data, xaxis, yaxis) {
  const figure = add(to, 'figure'), axis = {automargin: true, gridcolor: '#dde2e7', zeroline: false};
  add(figure, 'h3', title);
  const box = add(figure, 'div', '', {className: 'chart', role: 'img', ariaLabel: title});
  add(figure, 'figcaption', say);
  Plotly.newPlot(box, data, {height, margin: {l: 8, r: 8, t: 10, b: 8}, paper_bgcolor: '#0000', plot_bgcolor: '#0000',
    legend: {orientation: 'h', y: -64 / height, yanchor: 'top'}, hoverlabel: {bgcolor: '#fff', align: 'left'},
    font: {family: 'system-ui, sans-serif', color: '#1a1d21'}, hovermode: 'closest', dragmode: !phone && 'zoom',
    xaxis: {...axis, ...xaxis}, yaxis: {...axis, ...yaxis}}, {responsive: true, displayModeBar: false});
  label(box), box.on('plotly_afterplot', () => label(box));
}
function label(box) {  // each name beside its point where it covers nothing; none where there is no room
  const rect = e => e.getBoundingClientRect(), frame = rect(box.querySelector('.nsewdrag'));
  const line = box.querySelector('.js-line'), steps = [...Array(Math.ceil((line?.getTotalLength() ?? 0) / 5)).keys()];
  const taken = [...[...box.querySelectorAll('.point, .yerror')].map(rect),
    ...steps.map(s => line.getPointAtLength(5 * s)).map(p => new DOMRect(frame.x + p.x, frame.y + p.y))];
  const within = a => a.left > frame.left && a.right < frame.right && a.top > frame.top && a.bottom < frame.bottom;
  const free = a => taken.every(b => a.right < b.left || b.right < a.left || a.bottom < b.top || b.bottom < a.top);
  for (const name of box.querySelectorAll('.textpoint text')) {
    name.style.translate = 'none';
    const {x, y, width: w, height: h} = rect(name), at = (u, v) => new DOMRect(x + u * (w / 2 + 7), y + v * (h / 2 + 5), w, h);
    const spots = [[-1, -1], [1, 1], [1, -1], [-1, 1], [0, -3], [0, 3], [0, -4.3], [0, 4.3], [-1, 0], [1, 0]];
    const spot = within(new DOMRect(x + w / 2, y + h / 2)) && spots.map(s => at(...s)).find(a => within(a) && free(a));
    name.style.visibility = spot ? 'visible' : 'hidden';
    if (spot) taken.push(spot), name.style.translate = `${spot.x - x}px ${spot.y - y}px`;
  }
}
function axis(rows, f) {  // quality from where the strategies fill half of it, if that helps; wide ranges by logarithms
  const least = (some, f) => Math.min(...some.map(r => r[f])), most = f => Math.max(...rows.map(r => r[f]));
  const wide = f !== 'quality' && least(rows, f) > 0 && most(f) > 20 * least(rows, f), top = 100 * most('quality_high');
  const start = 200 * least(rows.filter(chosen), 'quality_low') - top, title = {text: NAMES[f], standoff: 8};
  if (wide) return {title: {...title, text: NAMES[f] + ' (log scale)'}, type: 'log', tickvals: TICKS, tickformat: ',~r'};
  const focus = f === 'quality' && top - 100 * least(rows, 'quality_low') > 1.5 * (top - start);
  return focus ? {title, range: [start, top + 1]} : {title};
}
function scatter(to, all, x, y) {
  const rows = all.filter(r => r[x] != null && r[y] != null), value = f => r => r[f] * (f === 'quality' ? 100 : 1);
  const at = some => ({x: some.map(value(x)), y: some.map(value(y)), hoverinfo: 'skip'});
  const line = rows.filter(r => r.frontier && x !== 'latency_mean').sort((a, b) => b[x] - a[x]);
  const named = [...line, ...rows.filter(r => chosen(r) && !line.includes(r))], title = f => NAMES[f].split(', ')[0];
  const data = [{...at(line), mode: 'lines', name: 'frontier', line: {shape: 'vh', width: 1.5, color: '#56606b'}}];
  for (const [name, [symbol, size, color]] of Object.entries(KINDS)) {
    const some = rows.filter(r => r.kind === name), gap = end => some.map(r => 100 * Math.abs(r[end] - r.quality));
    const hovertext = some.map(r => `<b>${wrap(r.strategy)}</b>${wrap(r.words)}` +
      Object.keys(NAMES).slice(2, -1).map(f => `${NAMES[f]}: ${text(r, f)}`).join('<br>'));
    data.push({...at(some), mode: 'markers', name, marker: {symbol, size, color}, hoverinfo: 'text', hovertext, error_y:
      {visible: y === 'quality', array: gap('quality_high'), arrayminus: gap('quality_low'), width: 0, thickness: 1}});
  }
  data.push({...at(named), mode: 'text', text: named.map(r => short(r.strategy)), showlegend: false});
  const yaxis = axis(rows, y), below = rows.filter(r => 100 * r.quality < yaxis.range?.[0]).length;
  const say = [y === 'quality' ? 'Up and left is better; bars are 95% intervals.' : 'Down and left is better.',
    line.length && 'On the line no other strategy is as good for less.',
    all.length > rows.length && `Not recorded, so only in the table: ${all.length - rows.length}.`,
    below && `Below the edge until you double-click: ${below}.`].filter(s => s).join(' ');
  draw(to, `${title(y)} against ${title(x)}`, say, line.length ? 520 : 420, data.filter(t => t.x.length), axis(rows, x), yaxis);
}
function heat(to, arms, z, of) {
  const ticks = {tickvals: arms.map((_, i) => i), ticktext: arms.map(short), showgrid: false};
  const zmax = Math.max(.1, ...z.flat().map(Math.abs)), best = of > arms.length ? `; the best ${arms.length} of ${of} arms` : '';
  const say = `Red pairs fail on the same tasks, blue ones on different tasks; arms that fail alike stand together${best}.`;
  const trace = {type: 'heatmap', z, zmin: -zmax, zmax, xgap: 1, ygap: 1, hoverongaps: false, colorbar: {thickness: 10},
    colorscale: [[0, '#2166ac'], [.5, '#f4f5f6'], [1, '#b2182b']], texttemplate: arms.length < 13 ? '%{z:.2f}' : '',
    hovertemplate: '%{y}<br>%{x}<br>correlation %{z:.2f}<extra></extra>'}, xaxis = {...ticks, showticklabels: !phone};
  draw(to, 'which arms fail together', say, 200 + 17 * arms.length, [trace], xaxis, {...ticks, autorange: 'reversed'});
}
for (const section of document.querySelectorAll('section')) {
  const {rows, arms, errors} = JSON.parse(section.querySelector('script').textContent);
  const cost = rows.some(r => r.kind === 'family' && r.cost_per_1000 == null) ? 'calls' : 'cost_per_1000';
  const charts = add(section, 'div', '', {className: 'charts'}), timed = rows.some(r => r.latency_mean != null);
  scatter(charts, rows, cost, 'quality');
  if (timed) for (const y of ['quality', cost]) scatter(charts, rows, 'latency_mean', y);
  else add(section, 'p', 'Latencies were not recorded, so no chart shows them.');
  add(section, 'h3', 'all figures'), table(section, rows);
  if (arms.length > 1) heat(section, arms, errors, rows.filter(r => r.kind === 'arm').length);
}
"""
