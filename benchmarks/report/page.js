"use strict";
(() => {
  const root = document.documentElement, KEY = "zoo-report-theme";
  const remember = value => { try { localStorage.setItem(KEY, value); } catch { /* private mode */ } };
  try { root.dataset.theme = localStorage.getItem(KEY) || ""; } catch { /* private mode */ }

  const create = (name, properties = {}, ...children) => {
    const node = Object.assign(document.createElement(name), properties);
    node.append(...children);
    return node;
  };

  function themeButton() {
    const dark = () => root.dataset.theme
      ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    const button = create("button", { type: "button", className: "theme" });
    const show = () => {
      button.textContent = dark() ? "☀" : "☾";
      button.ariaLabel = button.title = dark() ? "Light colours" : "Dark colours";
    };
    button.onclick = () => {
      root.dataset.theme = dark() ? "light" : "dark";
      remember(root.dataset.theme);
      show();
    };
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", show);
    show();
    document.querySelector("header").prepend(button);
  }

  function sortable(table) {
    const body = table.tBodies[0], rows = [...body.rows], heads = [...table.tHead.rows[0].cells];
    if (rows.length < 2) return;
    const value = (row, column) => {
      const cell = row.cells[column], text = cell.textContent.trim();
      if (cell.dataset.sort !== undefined) return Number(cell.dataset.sort);
      return text !== "" && !isNaN(text) ? Number(text) : text;
    };
    const compare = (a, b) => typeof a === typeof b
      ? (typeof a === "number" ? a - b : a.localeCompare(b, undefined, { numeric: true }))
      : (typeof a === "number" ? -1 : 1);
    heads.forEach((head, column) => {
      const button = create("button", { type: "button", title: "Sort" }, ...head.childNodes);
      head.append(button);
      button.onclick = () => {
        const now = head.getAttribute("aria-sort");
        const next = { null: "ascending", ascending: "descending", descending: null }[now];
        heads.forEach(other => other.removeAttribute("aria-sort"));
        if (next) head.setAttribute("aria-sort", next);
        const sign = next === "descending" ? -1 : 1;
        const order = next
          ? [...rows].sort((a, b) => sign * compare(value(a, column), value(b, column))) : rows;
        body.append(...order);
      };
    });
  }

  // The coordinates of a path as charts write them: absolute M, relative l.
  function pieces(path) {
    return path.getAttribute("d").split("M").slice(1).map(text => {
      const numbers = text.match(/-?\d*\.?\d+/g).map(Number), points = [];
      for (let i = 0; i + 1 < numbers.length; i += 2) {
        const [x, y] = points.at(-1) || [0, 0];
        points.push([x + numbers[i], y + numbers[i + 1]]);
      }
      return points;
    });
  }

  // The heights at which a path passes the place x.
  function heights(node, x) {
    if (node.tagName === "circle") {
      return Math.abs(node.cx.baseVal.value - x) < 6 ? [node.cy.baseVal.value] : [];
    }
    node.pieces ||= pieces(node);
    const found = [];
    for (const points of node.pieces) {
      for (let i = 1; i < points.length; i++) {
        const [[a, b], [c, d]] = [points[i - 1], points[i]];
        if (x < Math.min(a, c) || x > Math.max(a, c)) continue;
        found.push(a === c ? d : b + (d - b) * (x - a) / (c - a));
      }
    }
    return found;
  }

  function scale(words) {
    const [low, high, start, end, form] = words.split(" ");
    const [l, h, s, e] = [low, high, start, end].map(Number);
    const step = (h - l) / Math.abs(e - s);
    return { start: Math.min(s, e), end: Math.max(s, e), text: place => write(l + (place - s) / (e - s) * (h - l), form, step) };
  }

  // A value read off the picture, no finer than a tenth of its unit shows.
  function write(value, form, step) {
    const fixed = (v, s) => {
      const digits = Math.min(12, Math.max(0, -Math.floor(Math.log10(s))));
      const text = v.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits });
      return text.replace(/^-(?=[0.,]*$)/, "").replace("-", "\u2212");
    };
    if (form === "percent") return fixed(100 * value, 100 * step) + "\u00a0%";
    if (form === "seconds") {
      const [unit, name] = Math.abs(value) >= 7200 ? [3600, "h"] : Math.abs(value) >= 120 ? [60, "min"] : [1, "s"];
      return fixed(value / unit, step / unit) + "\u00a0" + name;
    }
    const size = Math.max(Math.abs(value), step);
    if (size >= 1e15 || size < 1e-4) return value.toExponential(2).replaceAll("-", "\u2212").replace("+", "");
    for (const [unit, letter] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]]) {
      if (Math.abs(value) >= unit && (form === "count" || unit >= 1e6)) return fixed(value / unit, step / unit) + letter;
    }
    return fixed(value, step);
  }

  function readable(figure) {
    const svg = figure.querySelector("svg[data-x]");
    if (!svg) return;
    const across = scale(svg.dataset.x), up = scale(svg.dataset.y);
    const names = [...figure.querySelectorAll(".legend li")].map(item => item.textContent);
    const [top, bottom] = [up.start, up.end];
    const guide = document.createElementNS("http://www.w3.org/2000/svg", "path");
    const readout = create("div", { className: "readout", hidden: true, role: "status" });
    guide.setAttribute("class", "guide");
    svg.prepend(guide);
    figure.append(readout);
    svg.tabIndex = 0;
    let place = null;

    const hide = () => {
      readout.hidden = true;
      guide.removeAttribute("d");
      svg.querySelector(".lit")?.classList.remove("lit");
    };
    const shown = selector => [...svg.querySelectorAll(selector)].filter(node => !node.closest(".hidden"));
    const series = node => Number(node.closest("[data-series]").dataset.series);

    function row(node, label, text) {
      const key = figure.querySelector(`.legend li[data-series="${series(node)}"] .key`)?.cloneNode(true);
      return create("div", {}, ...(key ? [key] : []), create("bdi", { textContent: label }), create("b", { textContent: text }));
    }

    function show(x, y) {
      place = Math.min(Math.max(x, across.start), across.end);
      hide();
      const rows = [];
      for (const node of shown(".centre, circle.full")) {
        const at = heights(node, place);
        if (!at.length) continue;
        const band = svg.querySelector(`[data-series="${series(node)}"] > .band`);
        const ends = band ? heights(band, place) : [];
        const interval = ends.length > 1 ? ` [${up.text(Math.max(...ends))}, ${up.text(Math.min(...ends))}]` : "";
        rows.push([at[0], row(node, names[series(node)] || "", up.text(at[0]) + interval)]);
      }
      let near = null, least = 7;
      if (y !== undefined) for (const node of shown(".trace")) {
        for (const at of heights(node, place)) {
          if (Math.abs(at - y) < least) [near, least] = [[node, at], Math.abs(at - y)];
        }
      }
      if (near) {
        near[0].classList.add("lit");
        rows.push([Infinity, row(near[0], near[0].dataset.name, up.text(near[1]))]);
      }
      if (!rows.length) return;
      rows.sort((a, b) => a[0] - b[0]);
      readout.replaceChildren(create("div", { textContent: across.text(place) }), ...rows.map(r => r[1]));
      readout.hidden = false;
      guide.setAttribute("d", `M${place} ${top}V${bottom}`);
      const box = svg.getBoundingClientRect(), frame = figure.getBoundingClientRect();
      const at = box.left - frame.left + place * box.width / svg.viewBox.baseVal.width;
      const room = frame.width - readout.offsetWidth;
      const left = at + 14 <= room ? at + 14 : at - 14 - readout.offsetWidth;
      readout.style.left = `${Math.max(0, Math.min(left, room))}px`;
      readout.style.top = `${box.bottom - frame.top + 6}px`;
    }

    const pointed = event => {
      const box = svg.getBoundingClientRect(), zoom = svg.viewBox.baseVal.width / box.width;
      show((event.clientX - box.left) * zoom, (event.clientY - box.top) * zoom);
    };
    svg.addEventListener("pointermove", pointed);
    svg.addEventListener("pointerdown", pointed);
    svg.addEventListener("pointerleave", event => { if (event.pointerType === "mouse") hide(); });
    svg.addEventListener("blur", hide);
    svg.addEventListener("keydown", event => {
      const steps = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (event.key === "Escape") hide();
      if (!steps) return;
      event.preventDefault();
      const far = (across.end - across.start) / 40;
      show(place === null ? (steps > 0 ? across.start : across.end) : place + steps * far);
    });
    document.addEventListener("pointerdown", event => { if (!figure.contains(event.target)) hide(); });
  }

  function switchable(item) {
    const figure = item.closest("figure"), index = item.dataset.series;
    const button = create("button", { type: "button", title: "Show or hide" }, ...item.childNodes);
    button.ariaPressed = "true";
    button.onclick = () => {
      const off = button.ariaPressed === "true";
      button.ariaPressed = String(!off);
      figure.querySelectorAll(`svg[data-x] [data-series="${index}"]`)
        .forEach(node => node.classList.toggle("hidden", off));
    };
    item.append(button);
  }

  function unfold() {
    const target = location.hash.length > 1 && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const folded = target && target.closest("details");
    if (folded && !folded.open) {
      folded.open = true;
      target.scrollIntoView();
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    themeButton();
    document.querySelectorAll("table").forEach(sortable);
    document.querySelectorAll("figure").forEach(readable);
    document.querySelectorAll(".legend li").forEach(switchable);
    unfold();
    addEventListener("hashchange", unfold);
    let closed = [];
    addEventListener("beforeprint", () => {
      closed = [...document.querySelectorAll("details:not([open])")];
      closed.forEach(node => { node.open = true; });
    });
    addEventListener("afterprint", () => closed.forEach(node => { node.open = false; }));
  });
})();
