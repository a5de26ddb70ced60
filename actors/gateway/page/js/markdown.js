// Markdown as DOM nodes. The text comes from a model, so it is data: every character becomes a text node, the elements are the
// ones created here, and no attribute has a value of the text except the address of a link, which must be http, https or mailto.
// Nothing is loaded from another host: an image becomes a link to it. Colours of code and formulas come from modules of the page, which are
// loaded when an answer has one.

const maxRows = 300; // of a table that is shown
const maxColumns = 30;
const maxDepth = 8; // of nested lists and quotes
const maxLine = 20000; // characters of a line in which marks are looked for
const maxFailed = 1000; // marks of a text that are looked at in vain; the rest is plain
const hiddenControls = /[\u202a-\u202e\u2066-\u2069\u200e\u200f\u061c\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f]/g;

// render returns the nodes of a text, one element for each block.
export function render(text) {
  return splitBlocks(clean(text)).map((b) => renderBlock(b, 0));
}

// Incremental renders a growing text into a container. Blocks that did not change keep their elements, so that a selection
// stays and only the last block is built again.
export class Incremental {
  constructor(container) {
    this.container = container;
    this.sources = [];
  }

  update(text) {
    const blocks = splitBlocks(clean(text));
    const sources = blocks.map((b) => JSON.stringify(b));
    let same = 0;
    while (same < sources.length && same < this.sources.length && sources[same] === this.sources[same]) same++;
    while (this.container.children.length > same) this.container.lastElementChild.remove();
    for (const b of blocks.slice(same)) this.container.append(renderBlock(b, 0));
    this.sources = sources;
  }
}

// clean removes characters that change the order or the look of others without being seen.
function clean(text) {
  return String(text).replace(/\r\n?|[\u2028\u2029]/g, "\n").replace(hiddenControls, "");
}

// The expressions below take time in proportion to the length of a line: an answer must not freeze the page. A mark that needs
// more is read by a function.
const headingStart = /^ {0,3}(#{1,6})\s+/;
const rule = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
const bullet = /^( {0,3})([-*+])(\s+)(.*)$/;
const numbered = /^( {0,3})(\d{1,9})([.)])(\s+)(.*)$/;

// readFence returns the mark and the language of a line that opens a block of code, otherwise null.
function readFence(line) {
  const m = /^ {0,3}(`{3,}|~{3,})/.exec(line);
  if (!m) return null;
  const info = line.slice(m[0].length);
  return info.includes("`") ? null : { mark: m[1], language: info.trim().split(/\s/, 1)[0] };
}

// readHeading returns the level and the text of a heading without the marks at its end, otherwise null.
function readHeading(line) {
  const m = headingStart.exec(line);
  if (!m) return null;
  const text = line.slice(m[0].length).trimEnd();
  let end = text.length;
  while (end > 0 && text[end - 1] === "#") end--;
  return { level: m[1].length, text: end === 0 || text[end - 1].trim() === "" ? text.slice(0, end).trimEnd() : text };
}

// isTableLine reports whether a line is the one between the head and the rows of a table.
function isTableLine(line) {
  const text = line.trim();
  return text.length <= 1000 && text.includes("|") && text.includes("-") && splitCells(text).every((c) => /^:?-+:?$/.test(c));
}

// splitBlocks returns the blocks of a text: {kind, ...}.
function splitBlocks(text) {
  const lines = text.split("\n");
  const blocks = [];
  let paragraph = [];
  const flush = () => {
    if (paragraph.length) blocks.push({ kind: "paragraph", text: paragraph.join("\n") });
    paragraph = [];
  };
  for (let i = 0; i < lines.length; i++) {
    const line = lines[i];
    let m;
    if (line.trim() === "") {
      flush();
    } else if (line.length > maxLine) {
      flush();
      blocks.push({ kind: "plain", text: line });
    } else if ((m = readFence(line))) {
      flush();
      const code = [];
      const closing = new RegExp("^ {0,3}" + m.mark[0] + "{" + m.mark.length + ",}\\s*$");
      let closed = false;
      for (i++; i < lines.length; i++) {
        if (closing.test(lines[i])) {
          closed = true;
          break;
        }
        code.push(lines[i]);
      }
      blocks.push({ kind: "code", language: m.language, text: code.join("\n"), closed });
    } else if (/^\s*\$\$/.test(line)) {
      flush();
      const math = [line];
      if (!/\$\$\s*$/.test(line.trim().slice(2))) {
        for (i++; i < lines.length; i++) {
          math.push(lines[i]);
          if (/\$\$\s*$/.test(lines[i])) break;
        }
      }
      blocks.push({ kind: "math", text: math.join("\n").trim().replace(/^\$\$|\$\$$/g, "").trim() });
    } else if (/^\s*\\\[/.test(line)) {
      flush();
      const math = [line];
      while (!math.at(-1).trimEnd().endsWith("\\]") && i + 1 < lines.length) math.push(lines[++i]);
      blocks.push({ kind: "math", text: math.join("\n").trim().replace(/^\\\[|\\\]$/g, "").trim() });
    } else if ((m = readHeading(line))) {
      flush();
      blocks.push({ kind: "heading", ...m });
    } else if (rule.test(line) && !paragraph.length) {
      blocks.push({ kind: "rule" });
    } else if (/^ {0,3}>/.test(line)) {
      flush();
      const quoted = [];
      for (; i < lines.length && lines[i].trim() !== ""; i++) quoted.push(lines[i].replace(/^ {0,3}> ?/, ""));
      i--;
      blocks.push({ kind: "quote", text: quoted.join("\n") });
    } else if (line.includes("|") && i + 1 < lines.length && isTableLine(lines[i + 1]) && !paragraph.length) {
      const head = splitCells(line);
      const align = splitCells(lines[i + 1]).map((c) => (/^:-+:$/.test(c) ? "center" : /-:$/.test(c) ? "right" : ""));
      const rows = [];
      for (i += 2; i < lines.length && lines[i].includes("|") && lines[i].trim() !== ""; i++) rows.push(splitCells(lines[i]));
      i--;
      blocks.push({ kind: "table", head, align, rows: rows.slice(0, maxRows), more: Math.max(0, rows.length - maxRows) });
    } else if ((bullet.test(line) || numbered.test(line)) && !(paragraph.length && numbered.test(line) && !/^ {0,3}1[.)]/.test(line))) {
      flush();
      const list = readList(lines, i);
      blocks.push(list.block);
      i = list.next - 1;
    } else {
      paragraph.push(line);
    }
  }
  flush();
  return blocks;
}

// readList reads a list that starts at line i.
function readList(lines, i) {
  const ordered = !bullet.test(lines[i]);
  const pattern = ordered ? numbered : bullet;
  const start = ordered ? Number(numbered.exec(lines[i])[2]) : 0;
  const items = [];
  while (i < lines.length) {
    const m = pattern.exec(lines[i]);
    if (!m) break;
    const indent = m[0].length - m[m.length - 1].length;
    const item = [m[m.length - 1]];
    for (i++; i < lines.length; i++) {
      const line = lines[i];
      const depth = line.length - line.trimStart().length;
      if (line.trim() === "") {
        const after = lines[i + 1] ?? "";
        if (after.trim() === "" || (after.length - after.trimStart().length < Math.min(indent, 2) && !pattern.test(after))) break;
        item.push("");
      } else if (depth >= Math.min(indent, 2) && depth > m[1].length) {
        item.push(line.slice(Math.min(depth, indent)));
      } else if (bullet.test(line) || numbered.test(line) || readFence(line) || headingStart.test(line)) {
        break;
      } else if (item[item.length - 1] === "") {
        break;
      } else {
        item.push(line.trim());
      }
    }
    items.push(item.join("\n"));
    while (i < lines.length && lines[i].trim() === "" && i + 1 < lines.length && pattern.test(lines[i + 1])) i++;
  }
  return { block: { kind: "list", ordered, start, items }, next: i };
}

function splitCells(line) {
  const cells = line.trim().replace(/^\||\|$/g, "").split(/(?<!\\)\|/).map((c) => c.replace(/\\\|/g, "|").trim());
  return cells.slice(0, maxColumns);
}

function element(name, ...children) {
  const e = document.createElement(name);
  e.append(...children);
  return e;
}

function renderBlock(b, depth) {
  switch (b.kind) {
    case "heading": {
      const e = element("h" + Math.min(6, b.level + 2), ...inline(b.text)); // the page has h1 and h2
      return e;
    }
    case "rule":
      return element("hr");
    case "code":
      return codeBlock(b.text, b.language, b.closed);
    case "math": {
      const e = mathBox("div", element("pre", element("code", b.text)), b.text, true);
      e.tabIndex = 0;
      e.setAttribute("role", "group");
      e.setAttribute("aria-label", "Formula");
      return e;
    }
    case "quote": {
      if (depth >= maxDepth) return element("p", b.text);
      return element("blockquote", ...splitBlocks(b.text).map((x) => renderBlock(x, depth + 1)));
    }
    case "list": {
      const list = element(b.ordered ? "ol" : "ul");
      if (b.ordered && b.start > 1) list.start = b.start;
      for (const item of b.items) {
        const blocks = depth >= maxDepth ? [{ kind: "paragraph", text: item }] : splitBlocks(item);
        const tight = blocks.length && blocks[0].kind === "paragraph";
        const li = element("li", ...(tight ? inline(taskMark(blocks[0].text)) : []));
        li.append(...(tight ? blocks.slice(1) : blocks).map((x) => renderBlock(x, depth + 1)));
        list.append(li);
      }
      return list;
    }
    case "plain":
      return element("p", b.text);
    case "table":
      return table(b);
    default:
      return element("p", ...inline(b.text));
  }
}

// taskMark shows the box of a task list as a character.
function taskMark(text) {
  return text.replace(/^\[( |x|X)\] /, (_, mark) => (mark === " " ? "☐ " : "☑ "));
}

function table(b) {
  const row = (cells, name) => {
    const tr = element("tr");
    for (let i = 0; i < b.head.length; i++) {
      const cell = element(name, ...inline(cells[i] ?? ""));
      if (name === "th") cell.scope = "col";
      if (b.align[i]) cell.className = "align-" + b.align[i];
      tr.append(cell);
    }
    return tr;
  };
  const t = element("table", element("thead", row(b.head, "th")), element("tbody", ...b.rows.map((r) => row(r, "td"))));
  const box = element("div", t);
  box.className = "table";
  box.tabIndex = 0;
  box.setAttribute("role", "group"); // not a landmark: an answer may have many
  box.setAttribute("aria-label", "Table");
  if (b.more) box.append(element("p", `${b.more} more rows are not shown.`));
  return box;
}

// decorated has the modules that draw what a text has rarely, by name, once one was needed.
const decorated = new Map();

// decorate calls draw with a module of the page when it is there. Without it the source stays.
function decorate(name, draw) {
  if (decorated.has(name)) draw(decorated.get(name));
  else import(name).then((m) => (decorated.set(name, m), draw(m)), () => {});
}

// mathBox returns an element with a formula: its source until it is drawn, and for good when it has something unknown.
function mathBox(name, source, text, isBlock) {
  const box = element(name, source);
  box.className = "math";
  decorate("./math.js", (m) => {
    const drawn = m.formula(text, isBlock);
    if (drawn) box.replaceChildren(drawn);
  });
  return box;
}

const diagrams = ["mermaid", "dot", "graphviz", "plantuml", "d2"];

// codeBlock returns a block of code with its language and a button that copies it. A diagram stays source: drawing it would run a
// program of the answer.
export function codeBlock(text, language, closed) {
  const code = element("code", text);
  const pre = element("pre", code);
  if (closed && language && !diagrams.includes(language))
    decorate("./highlight.js", (m) => {
      const nodes = m.highlight(text, language);
      if (nodes) code.replaceChildren(...nodes);
    });
  pre.tabIndex = 0;
  const copy = element("button", "Copy");
  copy.type = "button";
  copy.className = "copy";
  copy.addEventListener("click", () => {
    navigator.clipboard.writeText(text).then(
      () => (copy.textContent = "Copied"),
      () => (copy.textContent = "Copying failed: select the text"),
    );
    setTimeout(() => (copy.textContent = "Copy"), 1500);
  });
  const head = element("figcaption", element("span", diagrams.includes(language) ? `${language}, source of a diagram` : language || "text"), copy);
  const box = element("figure", head, pre);
  box.className = "code";
  return box;
}

// Inline marks in the order in which they are tried at a position.
const image = /^!\[([^\]]{0,500})\]\(\s*<?([^\s)>]{1,2000})>?(?:\s+["'(][^)]{0,500})?\)/;
const link = /^\[((?:[^[\]\\]|\\.|\[[^\]]{0,100}\]){1,500})\]\(\s*<?([^\s)>]{1,2000})>?(?:\s+["'(][^)]{0,500})?\)/;
const autolink = /^<?(https?:\/\/[^\s<>"')\]}]{1,2000}[^\s<>"')\]}.,;:!?])>?/;
const math = /^(\$\$?)(?!\s)([^$\n]{1,500}?)(?<!\s)\1(?![\d$])/;
const strong = /^(\*\*|__)(?=\S)([\s\S]{1,5000}?\S)\1/;
const emphasis = /^([*_])(?=\S)([^*_\n]{1,2000}?\S|\S)\1(?![\p{L}\p{N}])/u;
const deleted = /^~~(?=\S)([\s\S]{1,2000}?\S)~~/;

// readCode returns the code between two runs of as many backticks at the beginning of a text: [whole, run, code]. Without a second
// run, code is null.
function readCode(text) {
  const [run] = /^`+/.exec(text);
  const runs = /`+/g;
  runs.lastIndex = run.length;
  for (let m; (m = runs.exec(text)); ) if (m[0].length === run.length) return [text.slice(0, m.index + run.length), run, text.slice(run.length, m.index)];
  return [run, run, null];
}

// inline returns the nodes of a line of text. There is no link within a link.
function inline(text, depth = 0, inLink = false) {
  const out = [];
  let plain = "";
  let failed = 0;
  const flush = () => {
    if (plain) out.push(document.createTextNode(plain));
    plain = "";
  };
  const push = (node) => {
    flush();
    out.push(node);
  };
  for (let i = 0; i < text.length; ) {
    const c = text[i];
    const end = c === "\\" && text[i + 1] === "(" ? text.slice(i, i + 504).indexOf("\\)") : -1;
    if (end > 2) {
      const source = text.slice(i + 2, i + end);
      push(mathBox("span", element("code", source), source, false));
      i += end + 2;
      continue;
    }
    if (c === "\\" && /[\\`*_{}[\]()#+\-.!|~$<>]/.test(text[i + 1] ?? "")) {
      plain += text[i + 1];
      i += 2;
      continue;
    }
    if (c === "\n") {
      push(document.createElement("br"));
      i++;
      continue;
    }
    let m = null;
    if (failed < maxFailed && "`![<hH$*_~".includes(c)) {
      const rest = text.slice(i, i + 8000);
      const wordBefore = i > 0 && /[\p{L}\p{N}]/u.test(text[i - 1]);
      if (c === "`") {
        m = readCode(rest);
        if (m[2] === null) plain += m[1];
        else push(element("code", m[2].length > 2 && m[2].startsWith(" ") && m[2].endsWith(" ") ? m[2].slice(1, -1) : m[2]));
        if (m[2] === null) failed++;
      } else if (c === "!" && !inLink && (m = image.exec(rest))) push(anchor(m[2], ["image: " + (m[1] || m[2])]));
      else if (c === "[" && !inLink && (m = link.exec(rest))) push(anchor(m[2], depth < maxDepth ? inline(m[1], depth + 1, true) : [m[1]]));
      else if ((c === "<" || c === "h") && !wordBefore && !inLink && (m = autolink.exec(rest))) push(anchor(m[1], [m[1]]));
      else if (c === "$" && (m = math.exec(rest))) {
        push(mathBox("span", element("code", m[2]), m[2], false));
      } else if ((c === "*" || c === "_") && !(c === "_" && wordBefore) && depth < maxDepth) {
        if ((m = strong.exec(rest))) push(element("strong", ...inline(m[2], depth + 1, inLink)));
        else if ((m = emphasis.exec(rest))) push(element("em", ...inline(m[2], depth + 1, inLink)));
      } else if (c === "~" && depth < maxDepth && (m = deleted.exec(rest))) push(element("s", ...inline(m[1], depth + 1, inLink)));
      if (!m && c !== "h" && c !== "H") failed++; // a letter costs nothing
    }
    if (m) {
      i += m[0].length;
    } else {
      plain += c;
      i++;
    }
  }
  flush();
  return out;
}

// anchor returns a link that shows its host, or plain text for an address that is not followed. The host is the one that the
// browser would connect to: in ASCII, so that look-alike letters show. Only a text that is an address of the same host stands for
// itself. An address for mail is shown whole: it can carry a text.
export function anchor(address, children) {
  const url = parseURL(address);
  if (!url || !["http:", "https:", "mailto:"].includes(url.protocol) || url.username || url.password) {
    return element("span", ...children, ` (${address})`);
  }
  const a = element("a", ...children);
  a.href = url.href;
  a.target = "_blank";
  a.rel = "noopener noreferrer nofollow";
  const text = a.textContent.trim();
  const same = url.host ? text.startsWith(url.origin) && parseURL(text)?.host === url.host : text === url.href;
  if (!same) {
    const host = element("span", ` (${url.host || url.href})`);
    host.className = "host";
    a.append(host);
  }
  return a;
}

function parseURL(text) {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}
