// Which TaskManagers are shown, in which order, and what is visible of them.

const ROW_FILTERS = {
  all: "all TaskManagers",
  touched: "only with work that was not kept",
  faulty: "only those that a fault named",
};

class RowSet {
  constructor(run, filter = "all", search = "") {
    this.run = run;
    this.workers = [];
    const wanted = search.trim().toLowerCase();
    const named = new Set(run.faults.flatMap((fault) => fault[3]));
    for (let row = 0; row < run.workers.length; row += 1) {
      const name = run.workers[row];
      if (filter === "touched" && !this.touched(row)) continue;
      if (filter === "faulty" && !named.has(name)) continue;
      const rack = run.racks[run.worker_racks[row]];
      if (wanted && !`${rack} ${name}`.toLowerCase().includes(wanted)) continue;
      this.workers.push(row);
    }
    this.racks = this.rackBlocks();
    this.slotsMax = Math.max(1, ...this.distinctSlots());
  }

  get length() {
    return this.workers.length;
  }

  touched(row) {
    const { fate } = this.run.columns;
    const keptFates = [this.run.fates.indexOf("kept"), this.run.fates.indexOf("repeated")];
    for (let i = this.run.rowStarts[row]; i < this.run.rowStarts[row + 1]; i += 1) {
      if (!keptFates.includes(fate[i])) return true;
    }
    return false;
  }

  distinctSlots() {
    return new Set(this.workers.map((row) => this.run.columns.slots[row]));
  }

  // [name, first place, place after the last] of each rack.
  rackBlocks() {
    const blocks = [];
    this.workers.forEach((row, place) => {
      const name = this.run.racks[this.run.worker_racks[row]];
      const last = blocks[blocks.length - 1];
      if (last && last[0] === name) last[2] = place + 1;
      else blocks.push([name, place, place + 1]);
    });
    return blocks;
  }
}

// The seconds that are visible, shared by the timelines that are compared.
class TimeWindow {
  constructor(durationS) {
    this.durationS = durationS;
    this.fromS = 0;
    this.untilS = durationS;
    this.listeners = [];
  }

  get spanS() {
    return this.untilS - this.fromS;
  }

  show(fromS, untilS) {
    const spanS = clamp(untilS - fromS, Math.min(this.durationS, 0.002), this.durationS);
    this.fromS = clamp(fromS, 0, this.durationS - spanS);
    this.untilS = this.fromS + spanS;
    for (const listener of this.listeners) listener();
  }

  zoom(factor, aroundS) {
    const share = (aroundS - this.fromS) / this.spanS;
    const spanS = clamp(this.spanS / factor, Math.min(this.durationS, 0.002), this.durationS);
    this.show(aroundS - share * spanS, aroundS + (1 - share) * spanS);
  }

  move(byS) {
    this.show(this.fromS + byS, this.untilS + byS);
  }
}

// What one timeline shows: a time window, and rows from `top` on, each `rowHeight` pixels high.
class View {
  constructor(time) {
    this.time = time;
    this.top = 0;
    this.rowHeight = 20;
  }

  get fromS() {
    return this.time.fromS;
  }

  get spanS() {
    return this.time.spanS;
  }
}
