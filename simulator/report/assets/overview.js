// The whole run in one strip: how many slots were busy with what, and a frame around what the
// timeline below shows. Drag the frame to move it, drag beside it to choose another part.

const OVERVIEW_HEIGHT = 48;

class Overview {
  constructor(run, time) {
    this.run = run;
    this.time = time;
    this.canvas = el("canvas", { class: "overview", role: "img", "aria-label": "Busy slots over the whole run; the frame shows which part is visible below" });
    this.canvas.addEventListener("pointerdown", (event) => this.grab(event));
    time.listeners.push(() => this.draw());
  }

  // Busy slots by fate in each pixel column, once per width.
  measure(width) {
    if (this.planes?.columns === width) return;
    const { run } = this;
    const c = run.columns;
    this.planes = new Planes(run.fates.length, width, 1);
    const perTick = (run.tick_s / this.time.durationS) * width;
    for (let i = 0; i < run.attemptCount; i += 1) {
      this.planes.add(c.fate[i], 0, c.start[i] * perTick, c.end[i] === NEVER ? width : c.end[i] * perTick);
    }
    this.planes.sum();
    this.slots = Math.max(1, c.slots.reduce((sum, slots) => sum + slots, 0));
  }

  layout(x, width, palette) {
    Object.assign(this, { x, width: Math.max(10, Math.floor(width)), palette });
    this.measure(this.width);
    this.draw();
  }

  draw() {
    if (!this.palette) return;
    const ctx = sizedContext(this.canvas, this.x + this.width + 12, OVERVIEW_HEIGHT);
    const { run, palette, planes, time } = this;
    ctx.fillStyle = palette.panel;
    ctx.fillRect(this.x, 0, this.width, OVERVIEW_HEIGHT);
    const order = ["kept", "repeated", "running", "canceled", "rerun", "lost", "failed"].map((fate) => run.fates.indexOf(fate));
    for (let column = 0; column < this.width; column += 1) {
      let y = OVERVIEW_HEIGHT;
      for (const fate of order) {
        const height = (planes.values[fate][column] / this.slots) * (OVERVIEW_HEIGHT - 8);
        if (height < 0.02) continue;
        ctx.fillStyle = palette.fate[run.fates[fate]];
        ctx.fillRect(this.x + column, y - height, 1, height);
        y -= height;
      }
    }
    const at = (seconds) => this.x + (seconds / time.durationS) * this.width;
    for (const [kind, fromS, untilS] of run.interruptions()) {
      ctx.fillStyle = palette[kind];
      ctx.fillRect(at(fromS), 0, Math.max(1, at(untilS) - at(fromS)), 4);
    }
    const [x0, x1] = [at(time.fromS), at(time.untilS)];
    ctx.fillStyle = palette.bg;
    ctx.globalAlpha = 0.7;
    ctx.fillRect(this.x, 0, x0 - this.x, OVERVIEW_HEIGHT);
    ctx.fillRect(x1, 0, this.x + this.width - x1, OVERVIEW_HEIGHT);
    ctx.globalAlpha = 1;
    ctx.strokeStyle = palette.select;
    ctx.lineWidth = 1.5;
    ctx.strokeRect(x0 + 0.75, 0.75, Math.max(x1 - x0 - 1.5, 2), OVERVIEW_HEIGHT - 1.5);
    ctx.font = `600 11px ${palette.font}`;
    ctx.textAlign = "right";
    ctx.textBaseline = "middle";
    ctx.fillStyle = palette.muted;
    ctx.fillText("whole run", this.x - 8, OVERVIEW_HEIGHT / 2 - 7);
    ctx.font = `11px ${palette.font}`;
    ctx.fillText("busy slots", this.x - 8, OVERVIEW_HEIGHT / 2 + 7);
  }

  grab(event) {
    const seconds = (e) => ((e.clientX - this.canvas.getBoundingClientRect().left - this.x) / this.width) * this.time.durationS;
    const startS = seconds(event);
    const { fromS, untilS, durationS, spanS } = this.time;
    const inside = startS > fromS && startS < untilS && spanS < durationS * 0.999;
    this.canvas.setPointerCapture(event.pointerId);
    const move = (e) => {
      const nowS = seconds(e);
      if (inside) this.time.show(fromS + nowS - startS, untilS + nowS - startS);
      else if (Math.abs(nowS - startS) > durationS / 200) this.time.show(Math.min(startS, nowS), Math.max(startS, nowS));
    };
    this.canvas.addEventListener("pointermove", move);
    this.canvas.addEventListener("pointerup", () => this.canvas.removeEventListener("pointermove", move), { once: true });
  }
}

// The canvas's context, cleared, in CSS pixels, sharp on any screen.
function sizedContext(canvas, width, height) {
  const ratio = Math.min(window.devicePixelRatio || 1, 3);
  const [pixelWidth, pixelHeight] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== pixelWidth || canvas.height !== pixelHeight) {
    canvas.width = pixelWidth;
    canvas.height = pixelHeight;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
  }
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  ctx.clearRect(0, 0, width, height);
  return ctx;
}
