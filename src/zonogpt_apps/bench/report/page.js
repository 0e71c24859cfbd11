"use strict";

/* Colours: as the system says, or as the reader chooses. */

const theme = document.getElementById("theme");
theme.value = document.documentElement.dataset.theme;
theme.parentElement.hidden = false;
theme.addEventListener("change", () => {
  document.documentElement.dataset.theme = theme.value;
  try {
    localStorage.setItem("theme", theme.value);
  } catch {
    /* a browser that keeps nothing: the choice lasts as long as the page */
  }
});

/* Sorting: the button in a heading turns its column up, then down. Empty values always come last. */

function compare(a, b, direction) {
  const missing = (a === "") - (b === "");
  if (missing) return missing;
  if (typeof a === "number" && typeof b === "number") return direction * (a - b);
  return direction * String(a).localeCompare(String(b), "en", { numeric: true });
}

function turn(heading) {
  const direction = heading.getAttribute("aria-sort") === "ascending" ? -1 : 1;
  for (const other of heading.parentElement.children) other.setAttribute("aria-sort", "none");
  heading.setAttribute("aria-sort", direction === 1 ? "ascending" : "descending");
  return direction;
}

function valueOf(cell) {
  const text = cell.dataset.sort === undefined ? cell.textContent : cell.dataset.sort;
  return text === "" || Number.isNaN(Number(text)) ? text : Number(text);
}

for (const table of document.querySelectorAll("table.sortable")) {
  table.tHead.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    const heading = button.parentElement;
    const direction = turn(heading);
    const column = heading.cellIndex;
    const rows = [...table.tBodies[0].rows];
    rows.sort((a, b) => compare(valueOf(a.cells[column]), valueOf(b.cells[column]), direction));
    table.tBodies[0].append(...rows);
  });
}

/* All rows: `columns` names what each entry of `rows` holds; words are kept once, in `words`, and meant by number. */

const data = JSON.parse(document.getElementById("data").textContent);
const PAGE = 100;
const rows = data.rows.map((entry) => {
  const row = {};
  data.columns.forEach((name, k) => {
    row[name] = name in data.words ? data.words[name][entry[k]] : entry[k];
  });
  const input = data.inputs[row.input] || {};
  row.sentence = input.text || "";
  row.picture = input.picture || "";
  row.tokens = input.tokens || null;
  row.model = `${data.names[row.task]} ${row.size} ${row.blocks}`;
  row.search = [row.model, row.instance, row.claim, row.reason, row.sentence].join(" ").toLowerCase();
  return row;
});

const SHOWN = [
  { name: "instance", title: "Instance", word: true, sort: (row) => row.instance },
  { name: "status", title: "Status", word: true, sort: (row) => row.status },
  { name: "model", title: "Model", word: true, sort: (row) => row.model },
  { name: "method", title: "Method", word: true, sort: (row) => row.method },
  { name: "radius", title: "Radius", sort: (row) => row.radius },
  { name: "claim", title: "Claim", word: true, sort: (row) => row.claim },
  { name: "margin", title: "Margin", sort: (row) => (row.margin === null ? -Infinity : row.margin) },
  { name: "seconds", title: "Seconds", sort: (row) => row.seconds },
];

const filters = document.querySelector(".filters");
const table = document.getElementById("rows");
const more = document.getElementById("more");
const state = { matches: rows, shown: PAGE, column: null, direction: 1 };

function element(name, content, className) {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (content !== undefined) made.textContent = content; // never as HTML: sentences may hold anything
  return made;
}

function short(radius) {
  return radius.toExponential().replace("+", "");
}

function fillFilters() {
  for (const select of filters.querySelectorAll("select")) {
    const values = [...new Set(rows.map((row) => row[select.name]))];
    if (typeof values[0] === "number") values.sort((a, b) => a - b);
    select.append(new Option("all", ""));
    for (const value of values) {
      const said = select.name === "radius" ? short(value) : data.names[value] || String(value);
      select.append(new Option(said, String(value)));
    }
  }
}

function matching() {
  const wanted = [...filters.querySelectorAll("select")].filter((select) => select.value !== "");
  const words = filters.elements.text.value.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter(
    (row) =>
      wanted.every((select) => String(row[select.name]) === select.value) &&
      words.every((word) => row.search.includes(word)),
  );
}

function sentence(row) {
  const quote = element("blockquote");
  if (row.tokens === null || row.positions === null) {
    quote.textContent = row.sentence;
    return quote;
  }
  row.tokens.forEach((token, k) => {
    const word = token.trimStart(); // the space before a word belongs to its token, but is not marked
    quote.append(token.slice(0, token.length - word.length));
    quote.append(row.positions.includes(k) ? element("mark", word) : word);
  });
  return quote;
}

function details(row) {
  const box = element("details");
  box.append(element("summary", row.instance));
  // Filled when it is opened: most never are.
  box.addEventListener("toggle", () => {
    if (!box.open || box.children.length > 1) return;
    if (row.picture) {
      const picture = element("img", undefined, "digit");
      picture.src = row.picture;
      picture.alt = "the input";
      box.append(picture);
    }
    if (row.sentence) box.append(sentence(row));
    if (row.positions) box.append(element("p", `Moved tokens: ${row.positions.map((k) => k + 1).join(", ")}`));
    box.append(element("p", `${row.reason} (${row.device}, ${row.commit})`));
  });
  return box;
}

function line(row) {
  const made = element("tr");
  for (const column of SHOWN) {
    const cell = element("td", undefined, column.word ? "word" : "");
    if (column.name === "instance") cell.append(details(row));
    else if (column.name === "status") cell.append(element("span", data.names[row.status] || row.status, `status ${row.status}`));
    else if (column.name === "radius") cell.textContent = short(row.radius);
    else if (column.name === "margin") cell.textContent = row.margin === null ? "none" : row.margin.toPrecision(4);
    else if (column.name === "seconds") cell.textContent = row.seconds.toPrecision(3);
    else cell.textContent = row[column.name];
    made.append(cell);
  }
  return made;
}

function show() {
  const { matches, shown } = state;
  table.tBodies[0].replaceChildren(...matches.slice(0, shown).map(line));
  const seen = Math.min(shown, matches.length);
  document.getElementById("matches").textContent =
    `${matches.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} rows match` +
    (seen < matches.length ? `, the first ${seen.toLocaleString("en")} shown` : "");
  more.hidden = seen === matches.length;
}

function update() {
  state.matches = matching();
  if (state.column !== null) {
    const { sort } = state.column;
    state.matches.sort((a, b) => compare(sort(a), sort(b), state.direction));
  }
  state.shown = PAGE;
  show();
}

for (const column of SHOWN) {
  const heading = element("th", undefined, column.word ? "word" : "");
  heading.scope = "col";
  heading.setAttribute("aria-sort", "none");
  const button = element("button", column.title);
  button.type = "button";
  button.addEventListener("click", () => {
    state.direction = turn(heading);
    state.column = column;
    update();
  });
  heading.append(button);
  table.tHead.rows[0].append(heading);
}
fillFilters();
filters.addEventListener("input", update);
filters.addEventListener("submit", (event) => event.preventDefault());
filters.addEventListener("reset", () => setTimeout(update)); // the fields are empty only afterwards
more.addEventListener("click", () => {
  state.shown += PAGE;
  show();
});

/* All rows as a file, made here: the page needs no other file and no network. A line is a row, so line breaks inside a
   field become spaces. */

function field(value) {
  const text = (Array.isArray(value) ? value.join(" ") : String(value === null ? "" : value)).replace(/\s*[\r\n]+\s*/g, " ");
  return /[",]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

function csv() {
  const names = [...data.columns, "sentence"];
  return [names, ...rows.map((row) => names.map((name) => row[name]))].map((line) => line.map(field).join(",") + "\n");
}

document.getElementById("csv").addEventListener("click", () => {
  const link = element("a");
  link.href = URL.createObjectURL(new Blob(csv(), { type: "text/csv" }));
  link.download = "rows.csv";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
});

update();
