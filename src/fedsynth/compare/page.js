"use strict";
// Sorting, filtering, figures. The page works without network: everything is in it.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const dark = window.matchMedia("(prefers-color-scheme: dark)");
  const narrow = window.matchMedia("(max-width: 40rem)");

  // ---- tables ----------------------------------------------------------------------------------------------
  const cellValue = (row, column) => {
    const cell = row.cells[column];
    const text = cell.dataset.v;
    if (text === undefined) return cell.classList.contains("num") ? null : cell.textContent;
    const value = text === "inf" ? Infinity : Number(text);
    return text.trim() === "" || Number.isNaN(value) ? text : value;
  };
  const compare = (a, b) => {
    if (typeof a === "number" && typeof b === "number") return a - b;
    return String(a).localeCompare(String(b), "en", { numeric: true });
  };
  const sortTable = (table, column, descending) => {
    const body = table.tBodies[0];
    const rows = Array.from(body.rows, (row, index) => ({ row, index, value: cellValue(row, column) }));
    rows.sort((a, b) => {
      if (a.value === null || b.value === null) return (a.value === null) - (b.value === null) || a.index - b.index;
      return (descending ? -1 : 1) * compare(a.value, b.value) || a.index - b.index;
    });
    body.append(...rows.map((item) => item.row));
    Array.from(table.tHead.rows[0].cells).forEach((head, index) => {
      if (index === column) head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  };
  for (const table of document.querySelectorAll("table.sortable")) {
    Array.from(table.tHead.rows[0].cells).forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.title = "Sort by this column";
      button.append(...head.childNodes);
      head.append(button);
      button.addEventListener("click", () => {
        const now = head.getAttribute("aria-sort");
        const first = head.classList.contains("num"); // numbers: largest first
        sortTable(table, column, now === null ? first : now === "ascending");
      });
    });
  }

  const filter = document.getElementById("filter");
  const metric = document.getElementById("metric");
  const applyFilter = () => {
    const words = filter.value.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    const tables = [document.getElementById("headline"), ...document.querySelectorAll("#everything table")];
    for (const table of tables) {
      let hits = 0;
      for (const row of table.tBodies[0].rows) {
        const text = (row.cells[0].textContent + " " + row.cells[1].textContent + " " + table.id).toLowerCase();
        const fits = words.every((word) => text.includes(word))
          && (!metric.value || row.cells[1].textContent === metric.value);
        row.hidden = !fits;
        hits += fits;
      }
      const expander = table.closest("details");
      if (expander) expander.hidden = hits === 0;
      else shown = hits;
    }
    const total = document.getElementById("headline").tBodies[0].rows.length;
    document.getElementById("count").textContent = shown === total ? `${total} rows` : `${shown} of ${total} rows`;
  };
  if (filter) {
    filter.addEventListener("input", applyFilter);
    metric.addEventListener("change", applyFilter);
    applyFilter();
  }

  // ---- figures ---------------------------------------------------------------------------------------------
  const style = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const LIGHT = ["#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#7a7a7a"];
  const parts = (hex) => [1, 3, 5].map((place) => parseInt(hex.slice(place, place + 2), 16)).join(",");
  const repaint = (value) => {
    // Figures are stored in the light colors; the dark theme has lighter ones of the same hue.
    if (!dark.matches) return value;
    let text = JSON.stringify(value);
    LIGHT.forEach((color, index) => {
      const lighter = style("--c" + index);
      text = text.replaceAll(`"${color}"`, `"${lighter}"`).replaceAll(`rgba(${parts(color)},`, `rgba(${parts(lighter)},`);
    });
    return JSON.parse(text);
  };
  const merged = (axis, theme) => ({ ...theme, ...axis, title: { ...axis.title, standoff: 12 } });
  const themed = (layout) => {
    const axis = { gridcolor: style("--line"), linecolor: style("--line"), automargin: true, ticks: "" };
    const annotations = [...(layout.annotations || [])];
    if (data.simulated) {
      annotations.push({ xref: "paper", yref: "paper", x: 0.5, y: 0.5, text: "SIMULATED", showarrow: false,
        textangle: -20, opacity: dark.matches ? 0.3 : 0.18,
        font: { size: narrow.matches ? 34 : 56, color: dark.matches ? "#ff6b6b" : "#d00000" } });
    }
    return {
      ...layout,
      xaxis: merged(layout.xaxis, axis),
      yaxis: merged(layout.yaxis, axis),
      annotations,
      paper_bgcolor: "rgba(0,0,0,0)",
      plot_bgcolor: "rgba(0,0,0,0)",
      font: { family: getComputedStyle(document.body).fontFamily, size: 12.5, color: style("--text") },
      hoverlabel: { bgcolor: style("--surface"), bordercolor: style("--line"), font: { color: style("--text") } },
      modebar: { bgcolor: "rgba(0,0,0,0)", color: style("--quiet"), activecolor: style("--accent") },
      margin: { l: 60, r: 20, t: 16, b: 50 },
      showlegend: true,
      legend: { orientation: "h", x: 0, xanchor: "left", y: -0.22, yanchor: "top", font: { size: 11.5 } },
    };
  };
  const draw = (name, index) => {
    const choice = repaint(data.figures[name][index]);
    // Named one by one: plotly's own choice has a button that would upload the chart.
    const buttons = [["toImage", "zoom2d", "pan2d", "resetScale2d"]];
    const config = { displaylogo: false, responsive: true, modeBarButtons: buttons };
    return Plotly.react(`plot-${name}`, choice.data, themed(choice.layout), config);
  };
  const chosen = (name) => Number(document.querySelector(`select[data-figure="${name}"]`)?.value || 0);
  const drawAll = () => Promise.all(Object.keys(data.figures).map((name) => draw(name, chosen(name))));
  for (const select of document.querySelectorAll("select[data-figure]")) {
    select.addEventListener("change", () => draw(select.dataset.figure, Number(select.value)));
  }
  dark.addEventListener("change", drawAll);
  narrow.addEventListener("change", drawAll);

  // ---- links that carry a state: #sort=headline,2,descending  #filter=auroc ---------------------------------
  const applyHash = () => {
    const [key, value] = decodeURIComponent(location.hash.slice(1)).split("=");
    if (key === "sort" && value) {
      const [name, column, order] = value.split(",");
      const table = document.getElementById(name);
      const count = table?.tHead?.rows[0].cells.length || 0;
      if (Number(column) >= 0 && Number(column) < count) sortTable(table, Number(column), order !== "ascending");
    } else if (key === "filter" && filter) {
      filter.value = value || "";
      applyFilter();
    }
  };
  window.addEventListener("hashchange", applyHash);
  applyHash();
  drawAll().then(() => { document.documentElement.dataset.ready = "true"; });
})();
