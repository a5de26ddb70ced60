package firewall

import "strings"

// unspaced is the vocabulary of orders to a model in the languages without blanks between words, and in Korean, whose
// words carry their particles. It is looked for as text. All lists are folded.
var unspaced = struct {
	ignore                   []string // ignore, forget, "do not follow"
	notBefore, notAfter      []string // what negates it
	orders, prior, all, told []string
	say                      []string // to state, to answer
	user, quiet              []string // the user; "do not tell"
	helper, intelligence     []string // an assistant; that it is artificial
	addressed                []string // marks that end an address
	becomeOther, newOrders   []string
	systemPrompt, request    []string
}{
	ignore: foldList(
		"忽略", "无视", "無視", "忽視", "忽视", "忘记", "忘記", "忘掉", "抛开", "丢弃", "不要理会", "不必理会", "不用理会", "别理会", "不要遵守", "不要遵循",
		"不要听从", "不要执行",
		"不要按照", "不再遵循", "不再遵守", "别管", "作废", "不要理會", "不要遵從", "撤销",
		"忘れて", "忘れろ", "忘れなさい", "従わない", "従わず", "従うな", "取り消し", "破棄し", "無効にし",
		"무시하", "무시해", "무시할", "잊어", "잊고", "따르지 마", "따르지 말", "따르지말", "듣지 마", "취소하", "폐기하",
		"เพิกเฉย", "ไม่ต้องสนใจ", "ละเว้น", "ลืม", "อย่าทำตาม", "ไม่ต้องทำตาม", "มองข้าม",
	),
	notBefore: foldList("不要", "别", "不可", "切勿", "请勿", "勿", "不应", "不能", "不得", "อย่า"),
	notAfter:  foldList("しない", "しません", "しなかっ", "지 마", "지 말", "지마", "지 않", "했", "した", "していた"),
	orders: foldList(
		"指令", "指示", "命令", "提示词", "提示詞", "规则", "規則", "规定", "指引", "系统提示", "要求", "プロンプト", "ルール", "指図", "지시", "명령", "지침",
		"규칙", "프롬프트",
		"คำสั่ง", "คำแนะนำ", "กฎ",
	),
	prior: foldList(
		"之前", "以前", "上述", "以上", "上面", "前面", "先前", "此前", "收到的", "你的", "系统", "前の", "これまで", "上記", "以前の", "先ほど", "システムの",
		"システムプロンプト", "先の", "이전", "앞서", "앞의", "위의", "지금까지", "기존", "시스템",
		"ก่อนหน้า", "ข้างต้น", "ด้านบน",
	),
	all:  foldList("所有", "全部", "一切", "すべて", "全て", "全部の", "모든", "모두", "전부", "ทั้งหมด"),
	told: foldList("告诉你", "对你说", "跟你说", "教你", "给你的", "言われた", "教えられた", "与えられた", "들은", "말한", "받은", "บอก"),
	say:  foldList("述べ", "答え", "回答", "出力", "返信", "言っ", "表示"),
	user: foldList("用户", "使用者", "用戶", "ユーザー", "利用者", "사용자", "ผู้ใช้"),
	quiet: foldList(
		"不要告诉", "别告诉", "不要通知", "不得告知", "勿告知", "不要提及", "不要告訴", "不要向", "伝えない", "知らせない", "言わない", "伝えず", "知らせず", "教えない",
		"話さない", "伝えるな",
		"知らせないで", "알리지", "말하지", "언급하지", "อย่าบอก",
	),
	helper:       foldList("助手", "助理", "语言模型", "アシスタント", "エージェント", "言語モデル", "어시스턴트", "비서", "언어 모델", "ผู้ช่วย"),
	intelligence: foldList("ai", "智能", "智慧", "模型", "モデル", "인공지능", "모델"),
	addressed:    foldList(":", "へ", "に告ぐ", "에게", "께"),
	becomeOther:  foldList("你现在是", "あなたは今から", "너는 이제부터", "당신은 이제"),
	newOrders:    foldList("新的指令", "新しい指示", "새로운 지시"),
	systemPrompt: foldList("系统提示词", "システムプロンプト", "시스템 프롬프트"),
	request:      foldList("ください", "せよ", "なさい"),
}

const (
	unspacedSpan = 75  // bytes on each side of a verb that may hold its object
	unspacedTail = 150 // bytes after a verb that may hold a second order
)

func foldList(list ...string) []string {
	for i, w := range list {
		list[i] = foldText(w)
	}
	return list
}

// unspacedTriggers are the texts from which the rules start, by their first three bytes, which are one character.
var unspacedTriggers = func() map[string][]unspacedTrigger {
	m := map[string][]unspacedTrigger{}
	for _, t := range []struct {
		list  []string
		apply func(s *scanner, at, end int)
	}{
		{unspaced.ignore, (*scanner).matchUnspacedOverride},
		{unspaced.quiet, (*scanner).matchUnspacedSecrecy},
		{unspaced.helper, (*scanner).matchUnspacedAddress},
		{unspaced.becomeOther, func(s *scanner, at, end int) { s.addHit(techPersona, 5, at, end-at) }},
		{unspaced.newOrders, func(s *scanner, at, end int) { s.addHit(techDelimiter, 5, at, end-at) }},
		{unspaced.systemPrompt, func(s *scanner, at, end int) { s.addHit(techLeak, 3, at, end-at) }},
	} {
		for _, w := range t.list {
			m[w[:3]] = append(m[w[:3]], unspacedTrigger{w, t.apply})
		}
	}
	return m
}()

type unspacedTrigger struct {
	text  string
	apply func(s *scanner, at, end int)
}

// matchUnspaced adds signs for orders to a model in Chinese, Japanese, Korean and Thai. It does nothing in a text
// without their characters.
func (s *scanner) matchUnspaced() {
	if !s.f.isUnspaced {
		return
	}
	for i := 0; i+3 <= len(s.text); i++ {
		if s.text[i] < 0xE0 { // no first byte of a character of three bytes
			continue
		}
		for _, t := range unspacedTriggers[s.text[i:i+3]] {
			if strings.HasPrefix(s.text[i:], t.text) {
				t.apply(s, i, i+len(t.text))
			}
		}
		i += 2
	}
}

// matchUnspacedSecrecy adds a secrecy sign when "do not tell" from at to end has the user near it.
func (s *scanner) matchUnspacedSecrecy(at, end int) {
	if containsAny(s.around(at, end, 45), unspaced.user) {
		s.addHit(techSecrecy, 6, at, end-at+30)
	}
}

// matchUnspacedAddress adds an address sign when the assistant from at to end is an artificial one and is addressed.
func (s *scanner) matchUnspacedAddress(at, end int) {
	if containsAny(s.text[max(0, at-15):end], unspaced.intelligence) &&
		containsAny(s.text[end:min(len(s.text), end+24)], unspaced.addressed) {
		s.addHit(techAddress, 6, at, end-at)
	}
}

// around returns the text from at to end and at most n bytes on each side, within its line.
func (s *scanner) around(at, end, n int) string {
	from, to := max(0, at-n), min(len(s.text), end+n)
	if i := strings.LastIndexByte(s.text[from:at], '\n'); i >= 0 {
		from += i + 1
	}
	if i := strings.IndexByte(s.text[end:to], '\n'); i >= 0 {
		to = end + i
	}
	return s.text[from:to]
}

// matchUnspacedOverride adds an override sign when the verb from at to end means to ignore, is not negated and is no
// report, and its object are instructions or everything that was said.
func (s *scanner) matchUnspacedOverride(at, end int) {
	before, after := s.text[:at], s.text[end:]
	for _, w := range unspaced.notBefore {
		if strings.HasSuffix(before, w) {
			return
		}
	}
	for _, w := range unspaced.notAfter {
		if strings.HasPrefix(after, w) {
			return
		}
	}
	strong := 10
	if s.isInProseQuote(at) {
		strong /= 2
	}
	near := s.around(at, end, unspacedSpan)
	if isVerbLast(s.text[at:end]) { // its object stands before it
		near = near[:strings.Index(near, s.text[at:end])]
	}
	orders, all := containsAny(near, unspaced.orders), containsAny(near, unspaced.all)
	switch {
	case orders && (all || containsAny(near, unspaced.prior)), all && containsAny(near, unspaced.told):
		s.addHit(techOverride, strong, at, 60)
	case orders:
		s.addHit(techOverride, 5, at, 60)
	default: // ignore it and state that ...
		tail := after[:min(len(after), unspacedTail)]
		if strings.HasPrefix(after, unspacedAnd) && containsAny(tail, unspaced.request) &&
			containsAny(tail, unspaced.say) {
			s.addHit(techOverride, strong, at, 60)
		}
	}
}

// isInProseQuote reports whether a quotation that prose opens is open at offset at, in the 200 bytes of its line
// before.
func (s *scanner) isInProseQuote(at int) bool {
	before := s.text[max(0, at-200):at]
	before = before[strings.LastIndexByte(before, '\n')+1:]
	if strings.Count(before, `"`)%2 == 0 {
		return false
	}
	return s.stopOf(at-len(before)+strings.LastIndexByte(before, '"'))&sProse != 0
}

// unspacedAnd is the ending of a Japanese verb that another order follows.
var unspacedAnd = foldText("して")

// isVerbLast reports whether a word is Japanese or Korean by its script.
func isVerbLast(word string) bool {
	for _, r := range word {
		if r >= 0x3040 && r <= 0x30FF || r >= 0xAC00 {
			return true
		}
	}
	return false
}
