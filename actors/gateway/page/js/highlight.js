// Colours of code. The text is data: every character becomes a text node, within elements that have a class of a fixed list. One
// expression reads a language from left to right; each of its parts takes time in proportion to what it matches.

const maxCode = 50000; // characters; longer code has no colours
const maxSpans = 5000; // the rest of a code with more of them is plain

const words = (list) => new Set(list.split(" "));
const common = "if else for while do switch case default break continue return try catch finally throw new class extends import export from in of as const let var function async await yield static public private protected true false null void this super typeof instanceof delete";

// Comments, strings and keywords of the languages, as far as they differ.
const cLike = { comment: String.raw`\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|(?![\s\S]))`, string: String.raw`"(?:[^"\\\n]|\\[\s\S])*"?|'(?:[^'\\\n]|\\[\s\S])*'?` };
const script = { ...cLike, string: cLike.string + "|`(?:[^`\\\\]|\\\\[\\s\\S])*`?" };
const hash = { comment: String.raw`#[^\n]*`, string: cLike.string };
const languages = {
  javascript: { ...script, keywords: words(common + " undefined interface type enum implements readonly") },
  go: { ...script, keywords: words("break case chan const continue default defer else fallthrough for func go goto if import interface map package range return select struct switch type var nil true false iota any error string int bool byte rune") },
  rust: { comment: cLike.comment, string: String.raw`"(?:[^"\\]|\\[\s\S])*"?`, keywords: words("as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod move mut pub ref return self Self static struct super trait true false type unsafe use where while") },
  c: { ...cLike, keywords: words(common + " int long short char float double bool struct union enum typedef unsigned signed sizeof goto extern inline register volatile namespace using template typename auto constexpr virtual override nullptr include define package interface implements final abstract boolean byte string object internal sealed val fun when is data guard func var let protocol extension where foreach echo") },
  python: { comment: hash.comment, string: String.raw`[rbfuRBFU]{0,2}(?:"""[\s\S]*?(?:"""|(?![\s\S]))|'''[\s\S]*?(?:'''|(?![\s\S])))|` + hash.string, keywords: words("and as assert async await break class continue def del elif else except finally for from global if import in is lambda nonlocal not or pass raise return try while with yield match case True False None self") },
  shell: { ...hash, comment: String.raw`(?<![^\s;|&(])#[^\n]*`, string: String.raw`"(?:[^"\\]|\\[\s\S])*"?|'[^']*'?`, keywords: words("if then else elif fi for while until do done case esac in function return local export set unset exit break continue select trap source sudo cd echo") },
  ruby: { ...hash, keywords: words("alias and begin break case class def defined do else elsif end ensure false for if in module next nil not or redo rescue retry return self super then true undef unless until when while yield require attr_accessor") },
  sql: { comment: String.raw`--[^\n]*|\/\*[\s\S]*?(?:\*\/|(?![\s\S]))`, string: String.raw`'(?:[^']|'')*'?|"[^"]*"?`, keywords: words("select from where insert into values update set delete create table alter drop index view join left right inner outer full cross on as and or not null is in between like order by group having limit offset union all distinct case when then else end primary key foreign references default unique with returning exists begin commit rollback"), anyCase: true },
  lua: { comment: String.raw`--\[\[[\s\S]*?(?:\]\]|(?![\s\S]))|--[^\n]*`, string: cLike.string, keywords: words("and break do else elseif end false for function goto if in local nil not or repeat return then true until while") },
  yaml: { ...hash, comment: String.raw`(?<![^\s])#[^\n]*`, keywords: words("true false null yes no on off"), key: String.raw`^[ \t]*(?:- +)*[\w.\/-]+(?=:(?:\s|$))` },
  json: { comment: cLike.comment, string: String.raw`"(?:[^"\\\n]|\\[\s\S])*"?`, keywords: words("true false null"), key: String.raw`"(?:[^"\\\n]|\\[^\n])*"(?=\s*:)` },
  markup: { comment: String.raw`<!--[\s\S]*?(?:-->|(?![\s\S]))`, string: String.raw`(?<==)(?:"[^"]*"?|'[^']*'?)`, keywords: new Set(), key: String.raw`<\/?[A-Za-z][\w:.-]*|\/?>` },
  css: { comment: String.raw`\/\*[\s\S]*?(?:\*\/|(?![\s\S]))`, string: cLike.string, keywords: words("important media import supports keyframes font-face layer container"), key: String.raw`(?<=[{;\s])[a-z-]+(?=\s*:)` },
};
const names = { js: "javascript", jsx: "javascript", ts: "javascript", tsx: "javascript", typescript: "javascript", mjs: "javascript", golang: "go", rs: "rust", py: "python", python3: "python", sh: "shell", bash: "shell", zsh: "shell", console: "shell", dockerfile: "shell", makefile: "shell", rb: "ruby", yml: "yaml", toml: "yaml", ini: "yaml", json5: "json", jsonc: "json", html: "markup", xml: "markup", svg: "markup", vue: "markup", scss: "css", less: "css", postgresql: "sql", sqlite: "sql", h: "c", cpp: "c", "c++": "c", hpp: "c", cs: "c", csharp: "c", java: "c", kotlin: "c", kt: "c", swift: "c", php: "c", scala: "c", dart: "c" };

const expressions = new Map(); // by language

function expression(name, l) {
  if (!expressions.has(name)) expressions.set(name, new RegExp(`(${l.comment})|(${l.key ?? "(?!)"})|(${l.string})|` + String.raw`(\b(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.\d+)?(?:[eE][+-]?\d+)?)\b)|([\p{L}_$][\p{L}\p{N}_$]*)`, "gmu"));
  return expressions.get(name);
}

const kinds = ["", "comment", "key", "string", "number", "keyword"]; // by the groups of an expression

const span = (kind, text) => {
  const e = document.createElement("span");
  e.className = "hl-" + kind;
  e.textContent = text;
  return e;
};

const diffKinds = { "+": "added", "-": "removed", "@": "key" };

// highlight returns the nodes of a code in a language, or null for one that has no colours.
export function highlight(text, language) {
  const lower = language.toLowerCase();
  if (text.length > maxCode) return null;
  if (lower === "diff" || lower === "patch") return text.split(/(?<=\n)/).map((line) => (diffKinds[line[0]] ? span(diffKinds[line[0]], line) : document.createTextNode(line)));
  const name = Object.hasOwn(names, lower) ? names[lower] : lower;
  if (!Object.hasOwn(languages, name)) return null;
  const l = languages[name];
  const out = [];
  let plain = 0;
  for (const m of text.matchAll(expression(name, l))) {
    if (m[5] !== undefined && !l.keywords.has(l.anyCase ? m[0].toLowerCase() : m[0])) continue;
    if (out.length > 2 * maxSpans) break;
    if (m.index > plain) out.push(document.createTextNode(text.slice(plain, m.index)));
    out.push(span(kinds.find((_, i) => i && m[i] !== undefined), m[0]));
    plain = m.index + m[0].length;
  }
  out.push(document.createTextNode(text.slice(plain)));
  return out;
}
