// Reads what simulator/report/columns.py packed: base64 of gzip of head length, head, columns.

const NEVER = 0xffffffff;
const COLUMN_KINDS = { u1: Uint8Array, u2: Uint16Array, u4: Uint32Array, f8: Float64Array };

async function readRun(number) {
  const text = document.getElementById(`run-${number}`).textContent;
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  const data = await new Response(stream).arrayBuffer();
  const headLength = new DataView(data).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(data, 4, headLength)));
  const columns = {};
  for (const [name, kind, offset, length] of head.columns) {
    columns[name] = new COLUMN_KINDS[kind](data, 4 + headLength + offset, length);
  }
  return new Run(head, columns);
}

class Run {
  constructor(head, columns) {
    Object.assign(this, head);
    this.columns = columns;
    this.attemptCount = columns.row.length;
    this.durationS = Math.max(head.duration_s, 0.001);
    this.jobNames = new Map(head.jobs.map((job) => [job.id, job.name]));
    this.rowStarts = rowStarts(columns.row, head.workers.length);
    this.lifeStarts = rowStarts(columns.life_row, head.workers.length);
    this.linkStarts = rowStarts(columns.link_row, head.workers.length);
    this.fateCounts = head.fates.map(() => 0);
    for (const fate of columns.fate) this.fateCounts[fate] += 1;
  }

  seconds(ticks) {
    return ticks === NEVER ? this.durationS : ticks * this.tick_s;
  }

  attempt(i) {
    const c = this.columns;
    const [jobId, vertexId, vertexName, parallelism] = this.vertices[c.vertex[i]];
    return {
      number: i, jobId, vertexId, vertexName, parallelism, row: c.row[i], slot: c.slot[i],
      worker: this.workers[c.row[i]], rack: this.racks[this.worker_racks[c.row[i]]],
      fromS: this.seconds(c.start[i]), untilS: this.seconds(c.end[i]), open: c.end[i] === NEVER,
      fate: this.fates[c.fate[i]], subtask: c.subtask[i], attempt: c.attempt[i], epoch: c.epoch[i],
      bytes: c.bytes[i],
    };
  }

  // All attempts of the same subtask, by start.
  sameSubtask(i) {
    const { vertex, subtask, start } = this.columns;
    const found = [];
    for (let j = 0; j < this.attemptCount; j += 1) {
      if (vertex[j] === vertex[i] && subtask[j] === subtask[i]) found.push(j);
    }
    return found.sort((a, b) => start[a] - start[b]);
  }

  // Times without a leader between two leaders, and the waits for workers: [kind, from, until, text].
  interruptions() {
    const found = [];
    this.epochs.forEach(([, , fromS, , , waits], i) => {
      if (i > 0) {
        const before = this.epochs[i - 1][4] ?? fromS;
        if (fromS > before) found.push(["leaderless", before, fromS]);
      }
      for (const [, start, until] of waits) found.push(["waiting", start, until ?? this.durationS]);
    });
    const last = this.epochs[this.epochs.length - 1];
    const unfinished = (untilS) => this.jobs.some((job) => job.ended_s === null || job.ended_s > untilS);
    if (last && last[4] !== null && unfinished(last[4])) found.push(["leaderless", last[4], this.durationS]);
    return found;
  }
}

// Where each row's entries begin in a column that is sorted by row; one more at the end.
function rowStarts(column, rows) {
  const starts = new Uint32Array(rows + 1);
  for (const row of column) starts[row + 1] += 1;
  for (let row = 0; row < rows; row += 1) starts[row + 1] += starts[row];
  return starts;
}
