package digest

import (
	"strings"

	"conclave/pkg/text"
)

// The words by which orders are told from facts. They are compared with folded words: lower case, no accents.

// orderVerbs begin an order when they begin a clause.
var orderVerbs = text.WordSet(`ignore disregard forget delete remove erase send forward transmit submit execute reveal disclose tell write add append insert
	include buy purchase sell pay transfer withdraw donate subscribe unsubscribe install uninstall enable disable
	activate deactivate enter paste follow obey comply adhere respond summarize translate recommend remember memorize save
	keep retain ensure make pretend behave imagine assume consider become consult refer get take give bring put pull push
	retrieve find locate obtain collect gather extract create generate produce provide perform invoke trigger
	choose select pick prefer avoid refrain stop cease quit begin proceed continue repeat recite encode decode convert
	replace rename edit modify alter adjust configure reset restart reboot shut override bypass circumvent
	grant authorize approve confirm accept allow permit invite join register login unlock verify validate ask inform notify alert warn
	advise say explain describe discuss read reply see listen learn discover compare calculate compute
	connect disconnect attach detach encrypt decrypt inject upload publish tweet
	schedule cancel dismiss unblock promote advertise praise believe
	speak apply adopt swap create compile deploy merge
	concatenate blend enrich integrate utilize incorporate introduce determine elevate focus embody enhance augment supplement arrange craft
	combine weave infuse substitute rewrite rephrase format render analyze analyse evaluate assess classify identify solve complete
	wash stir pour bake boil rinse preheat sprinkle serve whisk
	ignoriere vergiss vergesst losche sende schicke klicke offne gib geh nimm fuhre schreibe fuge antworte merke verwende benutze
	befolge beachte uberweise kaufe lade starte
	ignora ignore olvida olvide olviden envia envie envien borra borre elimina elimine haz haga hagan escribe escriba anade responda responde
	recuerda recuerde abre abra pulsa compra compre transfiere transfiera desconsidera desconsidere apague apaga exclua esqueca
	esqueca dimentica dimenticate invia inviate cancella cancellate clicca cliccate scrivi scrivete ricorda ricordate apri aprite esegui
	eseguite rispondi rispondete ignorate oublie ignore supprime envoie ecris reponds fais
	negeer vergeet verwijder stuur klik zend schrijf
	zignoruj wyslij usun kliknij zapomnij napisz
	забудь игнорируй отправь удали нажми напиши запомни перешли
	تجاهل ارسل أرسل احذف انس`)

// ambiguousVerbs are as often nouns or adjectives at the beginning of a sentence.
var ambiguousVerbs = text.WordSet(`search report review call test record file note access contact mail order update change use show plan work play run walk
	visit place set open close start end help print request answer list mark check turn return support sign trade name press light
	stay drive fly rent cost scan track trace charge bill point cast draft code process sort filter limit lower raise increase decrease reduce
	back clear correct direct empty secure wrap mind hold hand host view load launch lock monitor manage mount
	express exercise experience practice practise sample ship shop sound study talk target time touch train travel vote wish head
	double clean dry fill present output wire clique pulse mach sage
	state share post drop cut cover rate log book fire block email message copy download export import move switch trust talk chat fork drain
	mix heat type watch mute ban treat store act chop slice fold mention commit embed deposit cook fetch tap click build
	clone wait look try hire reserve`)

// orderLeads stand before an order and do not change it.
var orderLeads = text.WordSet(`now then next first second third finally also so just simply always never instead and or but immediately quickly today kindly
	important attention warning urgent notice reminder hey hi hello ok okay well lastly afterwards otherwise again further furthermore
	additionally moreover therefore thus dann nun jetzt ensuite maintenant ahora luego adesso ora agora теперь сейчас сначала`)

// politeWords make a request wherever they stand.
var politeWords = text.WordSet(`please pls plz bitte veuillez s'il пожалуйста lutfen alstublieft prosze`)

// subordinators begin a sentence whose order comes after the comma.
var subordinators = text.WordSet(`if when whenever before after once while unless until as to in for since because whether should upon during with without
	wenn falls bevor nachdem si quand avant si cuando antes se quando prima если когда`)

// finiteVerbs state a fact.
var finiteVerbs = text.WordSet(`is are was were has have had will would can could may might did does do became become becomes began ended said says made makes
	took takes went goes came comes got gets ran runs saw sees fell rose grew won lost held kept left led met paid sold built wrote
	consists includes contains provides shows means needs requires uses allows remains seems appears costs lives works isn't aren't wasn't
	weren't hasn't won't can't doesn't ist sind war waren hat haben wird werden est sont etait ont fue sono`)

// frenchWords show that a word in -ez is a French verb.
var frenchWords = text.WordSet(
	`le la les un une des du de et vos votre vous toutes tous tout ce cette ces mon ma mes pour dans sur a au aux l'assistant`)

// objectMarkers stand before the object of an order.
var objectMarkers = text.WordSet(`the a an this that these those my your our his her their its it them him me us all any every each everything everyone both
	some no here now immediately only yourself`)

// grabbedObjects are objects of an order that is joined to a sentence.
var grabbedObjects = text.WordSet(`all any every everything your my our me this these it them whatever no nothing that`)

// machineWords name an automated reader.
var machineWords = text.WordSet(`assistant assistants ai ais chatbot chatbots llm llms chatgpt gpt claude gemini copilot bot bots agent agents language-model
	assistent ki-assistent asistente assistente ассистент`)

// modelPossessions follow "your" when a model is addressed.
var modelPossessions = text.WordSet(`instructions instruction prompt prompts task tasks guidelines rules rule operator developer developers creator creators user users owner
	response responses reply replies answer answers output outputs training memory memories tools tool system context programming
	constraints restrictions safety code codebase algorithm solution role persona objective goal summary conversation reasoning`)

// speechVerbs report that a text tells somebody something.
var speechVerbs = text.WordSet(`asks asked ask tells told tell instructs instructed instruct orders ordered order commands commanded demands demanded urges urged
	requests requested directs directed wants wanted advises advised invites invited encourages encouraged requires required reminds
	reminded warns warned begs begged asking telling instructing urging`)

// demandVerbs are the speech verbs after which "that" introduces an order.
var demandVerbs = text.WordSet(`asks asked ask instructs instructed orders ordered commands commanded demands demanded urges urged requests requested insists
	insisted`)

// audienceWords name whom a text addresses.
var audienceWords = text.WordSet(`reader readers user users assistant assistants ai ais model models agent agents visitor visitors you everyone anyone whoever
	chatbot bot llm viewers viewer recipients recipient`)

// infinitiveMarkers stand before the reported order.
var infinitiveMarkers = text.WordSet(`to not that never always`)

// documentWords name the text that reports an order.
var documentWords = text.WordSet(`page text article message note site website document author comment post email mail instruction instructions blog review file
	source sources answer result snippet`)

// anyOrderVerbs may follow "says to".
var anyOrderVerbs = func() map[string]bool {
	m := text.WordSet("use open call run check visit contact report not never always do be have")
	for w := range orderVerbs {
		m[w] = true
	}
	return m
}()

// userRoles name the user, of whom untrusted content knows nothing.
var userRoles = text.WordSet(`user person human owner operator administrator admin`)

// wishVerbs report what the user wants or allows.
var wishVerbs = text.WordSet(`wants want wanted prefers prefer preferred asked asks requested requests agreed agrees allowed allows authorized authorised authorizes
	approved approves likes loves hates needs consented consents trusts confirmed confirms permits permitted instructed instructs wishes
	expects said says told granted grants ordered decided gave intends lives works`)

// passiveOrders are participles of an order in the passive.
var passiveOrders = text.WordSet(`sent forwarded deleted removed erased transferred shared executed ignored disregarded disclosed revealed emailed mailed posted
	uploaded submitted transmitted installed disabled copied exported published granted remembered stored saved wired exfiltrated overwritten
	bypassed followed obeyed clicked`)

// demandingVerbs demand something in the first person.
var demandingVerbs = text.WordSet(
	`want need wish demand require insist beg urge ask authorize authorise order command instruct request expect`)

// permanenceWords make an order last.
var permanenceWords = text.WordSet(`you your always any all every never only`)

// unspacedOrders are signs of orders in Chinese, Japanese, Korean, Arabic, Hindi and Thai.
var unspacedOrders = []string{
	"请", "請", "务必", "務必", "必须", "必須", "不要", "忽略", "无视", "無視", "你现在", "你現在", "你应该", "你應該", "你是一个", "删除所有",
	"ください", "下さい", "しなさい", "せよ。", "しろ。", "してはいけません", "あなたは今", "無視して",
	"하세요", "하십시오", "해라", "해주세요", "해 주세요", "무시하", "마십시오",
	"يجب عليك", "من فضلك", "تجاهل", "أرسل", "احذف", "لا تخبر",
	"कृपया", "अनदेखा कर", "भेजें", "हटाएं", "กรุณา", "โปรด",
}

// unspacedNouns hold a sign of unspacedOrders and are no orders: to apply for, to invite.
var unspacedNouns = strings.NewReplacer("申请", "", "邀请", "", "申請", "", "邀請", "")
