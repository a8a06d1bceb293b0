// The waterfall in words: lengths of time, stages, steps, for its labels, its tips and those who do not see it.

const NS_PER_S = 1e9;
const KINDS = ["prefill", "decode", "recompute"];

function lengthWords(ns) {
  const value = ns / NS_PER_S;
  if (value >= 120) return `${Math.floor(value / 60)} min ${String(Math.floor(value % 60)).padStart(2, "0")} s`;
  for (const [unit, size] of [["s", 1], ["ms", 1e-3], ["µs", 1e-6]]) {
    const shown = value / size;
    if (shown >= 1) return `${shown.toFixed(shown >= 100 ? 0 : shown >= 10 ? 1 : 2)} ${unit}`;
  }
  return value > 0 ? "<1 µs" : "0 s";
}

function shareWords(share) {
  const percent = 100 * share;
  return percent >= 10 || percent === 0 ? `${percent.toFixed(0)} %` : percent < 0.1 ? "<0.1 %" : `${percent.toFixed(1)} %`;
}

const reasonWords = (reason) => reason.replaceAll("_", " ");

function pieceLines(piece, whole, words) {
  const length = piece.end - piece.begin;
  const lines = [`${piece.stage}: ${lengthWords(length)}, ${shareWords(whole ? length / whole : 0)}${piece.isOpen ? " so far" : ""}`];
  if (words.stage[piece.stage]) lines.push(words.stage[piece.stage]);
  if (piece.reason) lines.push(`because of ${reasonWords(piece.reason)}`);
  lines.push(`from ${lengthWords(piece.begin)} to ${lengthWords(piece.end)} after its first byte`);
  if (piece.together > 1) lines.push(`${piece.together} short pieces drawn as one`);
  return lines;
}

function runLines(run, step) {
  const [first, count, tokens, kind] = run;
  const each = `${tokens} token${tokens === 1 ? "" : "s"}, ${KINDS[kind]}`;
  return count === 1 ? [`step ${first}: ${each}`] : [`step ${step}: ${each}`, `the same in steps ${first} to ${first + count - 1}`];
}

function laneWords(lane, end) {
  const parts = Object.entries(lane.stage_ns).sort((a, b) => b[1] - a[1]).slice(0, 4).map(([stage, ns]) => `${stage} ${lengthWords(ns)}`);
  return `${lane.label}: ${lengthWords(end)}${lane.is_live ? " so far" : ""}; ${parts.join(", ")}`;
}
