// Formulas: a part of TeX as MathML, which browsers draw themselves. The text is data: the elements and the values of attributes are
// those of this file, and every character becomes a text node. What is not known here stays source.

const maxFormula = 2000; // characters
const maxDepth = 40;

const space = "http://www.w3.org/1998/Math/MathML";

function element(name, children = [], attributes = {}) {
  const e = document.createElementNS(space, name);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  e.append(...children);
  return e;
}

const pairs = (text) => Object.fromEntries(text.trim().split(/\s+/).map((p) => [p.slice(0, p.indexOf(":")), p.slice(p.indexOf(":") + 1)]));

const letters = pairs(`alpha:α beta:β gamma:γ delta:δ epsilon:ϵ varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ iota:ι kappa:κ lambda:λ mu:μ nu:ν xi:ξ pi:π varpi:ϖ rho:ρ sigma:σ varsigma:ς tau:τ upsilon:υ phi:ϕ varphi:φ chi:χ psi:ψ omega:ω
  Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω infty:∞ partial:∂ nabla:∇ hbar:ℏ ell:ℓ Re:ℜ Im:ℑ aleph:ℵ emptyset:∅ varnothing:∅ forall:∀ exists:∃ nexists:∄ top:⊤ bot:⊥ angle:∠ triangle:△ dots:… ldots:… cdots:⋯ vdots:⋮ ddots:⋱ prime:′`);
const operators = pairs(`pm:± mp:∓ times:× div:÷ cdot:⋅ ast:∗ star:⋆ circ:∘ bullet:∙ oplus:⊕ ominus:⊖ otimes:⊗ le:≤ leq:≤ ge:≥ geq:≥ ne:≠ neq:≠ approx:≈ equiv:≡ sim:∼ simeq:≃ cong:≅ propto:∝ ll:≪ gg:≫ in:∈ notin:∉ ni:∋ subset:⊂ subseteq:⊆ supset:⊃ supseteq:⊇ cup:∪ cap:∩ setminus:∖ land:∧ wedge:∧ lor:∨ vee:∨ neg:¬ lnot:¬
  to:→ rightarrow:→ leftarrow:← gets:← leftrightarrow:↔ Rightarrow:⇒ implies:⟹ Leftarrow:⇐ Leftrightarrow:⇔ iff:⟺ mapsto:↦ longrightarrow:⟶ uparrow:↑ downarrow:↓ mid:∣ parallel:∥ perp:⊥ vdash:⊢ models:⊨ colon::  langle:⟨ rangle:⟩ lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ vert:| Vert:‖ lbrace:{ rbrace:} backslash:\\`);
const large = pairs(`sum:∑ prod:∏ coprod:∐ bigcup:⋃ bigcap:⋂ bigoplus:⨁ bigotimes:⨂ bigvee:⋁ bigwedge:⋀`);
const integrals = pairs(`int:∫ iint:∬ iiint:∭ oint:∮`);
const functions = new Set("sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp det dim ker deg gcd hom arg".split(" "));
const limits = new Set("lim max min sup inf limsup liminf argmax argmin Pr".split(" "));
const accents = pairs(`hat:^ widehat:^ bar:¯ overline:¯ vec:→ dot:˙ ddot:¨ tilde:~ widetilde:~ check:ˇ`);
const blanks = { ",": "0.17em", ":": "0.22em", ";": "0.28em", " ": "0.28em", "!": "0em", quad: "1em", qquad: "2em" };
const fonts = { mathbb: "double-struck", mathbf: "bold", boldsymbol: "bold", bm: "bold", mathrm: "normal", mathit: "italic", mathcal: "script", mathscr: "script", mathfrak: "fraktur", mathsf: "sans-serif", mathtt: "monospace" };
const tables = { matrix: ["", ""], pmatrix: ["(", ")"], bmatrix: ["[", "]"], Bmatrix: ["{", "}"], vmatrix: ["|", "|"], Vmatrix: ["‖", "‖"], smallmatrix: ["", ""], cases: ["{", ""], aligned: ["", ""], align: ["", ""], "align*": ["", ""], split: ["", ""], gathered: ["", ""], array: ["", ""] };

const doubleStruck = { R: "ℝ", N: "ℕ", Z: "ℤ", Q: "ℚ", C: "ℂ", P: "ℙ", H: "ℍ", E: "𝔼" };

class Unknown extends Error {}

// tokens are commands, numbers, runs of blanks and single characters.
const tokens = (text) => text.match(/\\(?:[A-Za-z]+\*?|[\s\S])|\d+(?:[.,]\d+)*|\s+|[\s\S]/gu) ?? [];
const isBlank = (t) => t !== undefined && !t.trim();

const isStacked = new WeakSet(); // elements with what stands below and above them there, and not behind

class Parser {
  constructor(text) {
    this.tokens = tokens(text);
    this.at = 0;
    this.depth = 0;
  }

  peek() {
    while (isBlank(this.tokens[this.at])) this.at++;
    return this.tokens[this.at];
  }

  next() {
    this.peek();
    return this.nextRaw();
  }

  nextRaw() {
    if (this.at >= this.tokens.length) throw new Unknown("the formula ends too early");
    return this.tokens[this.at++];
  }

  take(token) {
    if (this.peek() !== token) return false;
    this.at++;
    return true;
  }

  // row reads up to a token of ends, which stays.
  row(...ends) {
    const out = [];
    while (this.peek() !== undefined && !ends.includes(this.peek())) out.push(this.scripts());
    return out;
  }

  one(children) {
    return children.length === 1 ? children[0] : element("mrow", children);
  }

  // scripts reads an atom with what stands below and above it.
  scripts() {
    const base = this.atom();
    let [sub, sup] = [null, null];
    let primes = "";
    for (;;) {
      if (this.take("'")) primes += "′";
      else if (!sub && this.take("_")) sub = this.atom();
      else if (!sup && this.take("^")) sup = this.atom();
      else break;
    }
    if (primes) sup = element("mrow", [element("mo", [primes]), ...(sup ? [sup] : [])]);
    if (!sub && !sup) return base;
    const names = isStacked.has(base) ? ["munder", "mover", "munderover"] : ["msub", "msup", "msubsup"];
    return element(names[sub && sup ? 2 : sup ? 1 : 0], [base, sub, sup].filter(Boolean));
  }

  // text reads the characters in braces as they are.
  text() {
    if (!this.take("{")) throw new Unknown("text without braces");
    let out = "";
    for (let open = 1; ; ) {
      const t = this.nextRaw();
      if (t === "{") open++;
      else if (t === "}" && --open === 0) return out;
      else out += isBlank(t) ? "\u00a0" : t;
    }
  }

  atom() {
    if (++this.depth > maxDepth) throw new Unknown("too deep");
    try {
      return this.readAtom();
    } finally {
      this.depth--;
    }
  }

  readAtom() {
    const t = this.next();
    if (t === "{") {
      const e = this.one(this.row("}"));
      this.next();
      return e;
    }
    if (t === "}" || t === "&" || t === "^" || t === "_" || t === "#" || t === "$" || t === "%") throw new Unknown(t);
    if (t === "~") return element("mspace", [], { width: "0.28em" });
    if (/^\d/.test(t)) return element("mn", [t]);
    if (/^\p{L}$/u.test(t)) return element("mi", [t]);
    if (t[0] !== "\\") return element("mo", [t === "-" ? "−" : t === "*" ? "∗" : t]);
    return this.command(t.slice(1));
  }

  command(name) {
    const has = (table) => Object.hasOwn(table, name);
    if (has(letters)) return element("mi", [letters[name]]);
    if (has(operators)) return element("mo", [operators[name]]);
    if (has(blanks)) return element("mspace", [], { width: blanks[name] });
    if (has(large)) return this.stacked(element("mo", [large[name]]));
    if (has(integrals)) return element("mo", [integrals[name]]);
    if (functions.has(name)) return element("mi", [name]);
    if (limits.has(name)) return this.stacked(element("mi", [name]));
    if (has(accents)) return element("mover", [this.atom(), element("mo", [accents[name]])], { accent: "true" });
    if (has(fonts)) return this.font(name);
    if ("{}|%$#&_".includes(name)) return element("mo", [name === "|" ? "‖" : name]);
    switch (name) {
      case "frac":
      case "dfrac":
      case "tfrac":
        return element("mfrac", [this.atom(), this.atom()]);
      case "binom":
        return element("mrow", [element("mo", ["("]), element("mfrac", [this.atom(), this.atom()], { linethickness: "0" }), element("mo", [")"])]);
      case "sqrt": {
        if (!this.take("[")) return element("msqrt", [this.atom()]);
        const index = this.one(this.row("]"));
        this.next();
        return element("mroot", [this.atom(), index]);
      }
      case "underline":
        return element("munder", [this.atom(), element("mo", ["_"])]);
      case "overbrace":
        return this.stacked(element("mover", [this.atom(), element("mo", ["⏞"])]));
      case "underbrace":
        return this.stacked(element("munder", [this.atom(), element("mo", ["⏟"])]));
      case "text":
      case "textbf":
      case "textit":
      case "textrm":
      case "mbox":
        return element("mtext", [this.text()]);
      case "operatorname":
      case "operatorname*":
        return element("mi", [this.text()]);
      case "left":
        return this.fence();
      case "begin":
        return this.table();
      case "displaystyle":
      case "textstyle":
      case "limits":
      case "nolimits":
      case "big":
      case "Big":
      case "bigl":
      case "bigr":
      case "Bigl":
      case "Bigr":
        return element("mrow");
    }
    throw new Unknown("\\" + name);
  }

  stacked(e) {
    isStacked.add(e);
    return e;
  }

  font(name) {
    const e = this.atom();
    for (const x of e.localName === "mi" ? [e] : e.querySelectorAll("mi")) {
      if (name === "mathbb" && Object.hasOwn(doubleStruck, x.textContent)) x.textContent = doubleStruck[x.textContent];
      else x.setAttribute("mathvariant", name === "mathrm" ? "normal" : fonts[name]);
    }
    return e;
  }

  delimiter() {
    const t = this.next();
    const name = t.slice(1);
    if (t === ".") return [];
    const sign = t[0] !== "\\" ? t : Object.hasOwn(operators, name) ? operators[name] : "{}|".includes(name) ? (name === "|" ? "‖" : name) : null;
    if (!sign || !"()[]{}|‖/⟨⟩⌊⌋⌈⌉<>\\".includes(sign)) throw new Unknown(t);
    return [element("mo", [sign], { stretchy: "true" })];
  }

  fence() {
    const open = this.delimiter();
    const inner = this.row("\\right");
    this.next();
    return element("mrow", [...open, ...inner, ...this.delimiter()]);
  }

  table() {
    const name = this.text();
    if (!Object.hasOwn(tables, name)) throw new Unknown(name);
    if (name === "array") this.text();
    const [open, close] = tables[name];
    const rows = [];
    for (let cells = []; ; ) {
      cells.push(element("mtd", this.row("&", "\\\\", "\\end")));
      const t = this.next();
      if (t === "&") continue;
      rows.push(element("mtr", cells));
      cells = [];
      if (t === "\\end") break;
      if (this.peek() === "\\end") {
        this.next();
        break;
      }
    }
    if (this.text() !== name) throw new Unknown("another end of " + name);
    const sign = (s) => (s ? [element("mo", [s], { stretchy: "true" })] : []);
    return element("mrow", [...sign(open), element("mtable", rows), ...sign(close)]);
  }
}

// formula returns a text of TeX as an element, or null for one with something that is not known here.
export function formula(text, isBlock) {
  if (text.length > maxFormula) return null;
  const p = new Parser(text);
  try {
    const rows = p.row();
    return element("math", [element("mrow", rows)], { display: isBlock ? "block" : "inline", alttext: text });
  } catch (e) {
    if (e instanceof Unknown) return null;
    throw e;
  }
}
