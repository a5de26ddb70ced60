package firewall

// role is the set of parts that a word can have in an order to a model, in any language. The rules over roles are in
// intents.go.
type role uint32

const (
	rIgnore role = 1 << iota // ignore, forget, "do not follow": an imperative or infinitive
	// with rIgnore: the form is also a past or a third person, and counts only where an order may begin
	rStarts
	rOrders   // instructions, rules, system prompt
	rPrior    // previous, above, so far, your
	rAll      // all, everything
	rTold     // told, said, received
	rNot      // a negation before the verb
	rNotAfter // a negation that may follow the verb
	rFollow   // follow, obey: with rNotAfter it means ignore
	rTell     // tell, mention
	rNegated  // with rTell: the form means "do not tell"
	rUser     // user
	rHelper   // assistant, agent
	rAI       // the word for artificial intelligence beside rHelper
	rLead     // words that an order may follow: please, and
)

// language is the vocabulary of orders to a model in one language or several close ones: words separated by blanks.
// "word*" stands for all words that begin so, "a+b" for words in a row. "!" before a form of ignore adds rStarts,
// before one of tell rNegated. The words are folded as the texts are, so accents and case do not matter.
type language struct {
	name                                                          string
	ignore, orders, prior, all, told                              string
	not, notAfter, follow, tell, user, helper, intelligence, lead string
}

// languages lists the languages with blanks between words. Chinese, Japanese, Korean and Thai are in eastasian.go.
// English has rules of its own, see [wordRules].
var languages = []language{
	{
		name: "German",
		ignore: "ignoriere ignorieren ignoriert vergiss vergesst vergessen missachte missachten missachtet ubergehe " +
			"ubergehen verwirf verwerfen außer+acht lass+außer uberspringe",
		orders: "anweisung* instruktion* vorgabe* systemvorgabe* befehl* regel regeln richtlinie* systemprompt* " +
			"prompt prompts auftrag auftrage systemanweisung* hinweise",
		prior: "systemanweisung* systemvorgabe* systemprompt* system vorherige* bisherige* bisher obige* oben " +
			"vorige* vorangegangen* vorangehend* fruhere* zuvor vorhin vorher davor deine deinen deiner eure " +
			"ursprungliche*",
		all: "alle allen alles samtliche* jegliche*", told: "gesagt mitgeteilt gegeben erhalten beigebracht " +
			"aufgetragen",
		not: "nicht nie niemals", notAfter: "nicht nichts keine keinesfalls", follow: "befolge befolgen befolgt " +
			"folge folgen beachte beachten halte",
		tell:   "sag sage sagen erwahne erwahnen verrate verraten informiere informieren erzahl erzahle",
		user:   "nutzer benutzer anwender nutzerin",
		helper: "assistent* agent agenten sprachmodell*", intelligence: "ki ai kunstlich*", lead: "bitte und nun jetzt",
	},
	{
		name: "French",
		ignore: `!ignore !ignores ignorez ignorer !oublie oubliez oublier neglige negligez laisse+de+côté laissez+de+côté faites+abstraction fais+abstraction ne+tenez+pas+compte ne+tiens+pas+compte ne+pas+tenir+compte
			ne+suis+pas ne+suis+plus ne+suivez+pas ne+suivez+plus n'obeis n'obeissez ne+respecte ne+respectez ne+tenez+aucun+compte ne+tiens+aucun+compte`,
		orders: "instruction instructions consigne consignes directive directives ordres regles invite+systeme " +
			"prompt prompts commandes indications",
		prior: "systeme precedent precedente precedentes precedents anterieur* ci-dessus dessus auparavant avant " +
			"tes vos recues initiale* plus+haut prealable*",
		all: "n'importe chaque quelconque toute toutes tous tout", told: "dit dites donne donnees recu recues " +
			"appris",
		not: "ne n pas", tell: "dis dites parle parlez mentionne mentionnez informe informez revele revelez",
		user:   "utilisateur utilisatrice l'utilisateur usager",
		helper: "assistant assistante l'assistant agent l'agent modele", intelligence: "ia d'ia",
		lead: "veuillez et maintenant plait",
	},
	{
		name: "Spanish",
		ignore: `!ignora !ignore ignorad ignoren ignorar !olvida !olvide olviden olvidate olvidese olvidar !omite !omita omitir !descarta descarte descartar !desestima desatiende
			caso+omiso no+hagas+caso no+haga+caso no+sigas no+siga no+obedezcas no+obedezca deja+de+lado no+tengas+en+cuenta no+tenga+en+cuenta pasa+por+alto`,
		orders: "directriz directiva regla orden indicacion instruccion instrucciones ordenes reglas indicaciones " +
			"directrices directivas pautas consignas mensaje+del+sistema prompt prompts comandos normas",
		prior: "sistema anterior anteriores previa previas previos previo anteriormente antes arriba precedentes " +
			"tus sus iniciales recibidas",
		all: "cada cualquier cualquiera todas todos todo toda", told: "dijeron dicho dijo dieron ensenaron " +
			"indicaron recibiste",
		not: "no nunca", tell: "digas diga decir menciones mencione informes informe cuentes cuente avises avise " +
			"reveles", user: "usuario usuaria",
		helper: "asistente agente modelo", intelligence: "ia", lead: "favor y ahora",
	},
	{
		name: "Italian",
		ignore: `!ignora ignorate ignorare !ignori dimentica dimenticate dimenticare !dimentichi !trascura trascurate trascurare !scarta non+tenere+conto non+tener+conto
			non+tenete+conto non+seguire non+seguite non+segua non+obbedire non+considerare lascia+perdere`,
		orders: "direttiva regola ordine istruzione istruzioni regole ordini direttive indicazioni comandi prompt " +
			"linee+guida disposizioni",
		prior: "sistema precedente precedenti precedenza sopra prima finora anteriori tue vostre sue ricevute " +
			"iniziali",
		all: "ogni qualunque tutte tutti tutto qualsiasi", told: "detto stato dato insegnato comunicato",
		not: "non mai", tell: "dire dirlo dica menzionare informare rivelare parlarne comunicare",
		user:   "utente l'utente all'utente",
		helper: "assistente l'assistente agente modello", intelligence: "ia ai", lead: "prego favore e ora adesso",
	},
	{
		name: "Portuguese",
		ignore: `!ignore !ignora ignorem ignorar !esqueca !esquece esquecer esquecam desconsidere desconsidera desconsiderem desconsiderar !descarte !despreze
			nao+siga nao+sigas nao+sigam nao+obedeca nao+leve+em+conta nao+cumpra deixe+de+lado`,
		orders: "diretriz regra ordem orientacao instrucao instrucoes ordens regras comandos diretrizes orientacoes " +
			"indicacoes prompt prompts diretivas",
		prior: "sistema anterior anteriores anteriormente antes acima previas previos previa precedentes suas tuas " +
			"recebidas iniciais",
		all: "qualquer quaisquer todas todos tudo toda", told: "disseram dito disse ensinaram foi+dito recebeu",
		not: "nao nunca", tell: "conte contes diga digas dizer mencione informe revele avise",
		user:   "usuario utilizador usuaria",
		helper: "assistente agente modelo", intelligence: "ia", lead: "favor e agora",
	},
	{
		name: "Dutch",
		ignore: "negeer negeren vergeet vergeten sla+geen+acht geen+acht geen+rekening veronachtzaam " +
			"buiten+beschouwing",
		orders: "richtlijn regel instructie instructies aanwijzing aanwijzingen opdracht opdrachten regels " +
			"richtlijnen bevelen systeemprompt* prompt prompts voorschriften",
		prior: "systeem* oorspronkelijke vorige eerdere eerder voorgaande bovenstaande voorafgaande hiervoor " +
			"hierboven daarvoor jouw je uw oorspronkelijke",
		all: "alle alles", told: "verteld gezegd gekregen opgedragen",
		not: "niet nooit", notAfter: "niet", follow: "volg volgen gehoorzaam", tell: "vertel zeg meld vermeld " +
			"informeer", user: "gebruiker",
		helper: "assistent agent taalmodel", intelligence: "ai ki kunstmatige",
		lead: "en nu alsjeblieft alstublieft gelieve",
	},
	{
		name:   "Polish",
		ignore: `zignoruj zignorujcie zignorowac ignoruj ignorujcie ignorowac zapomnij zapomnijcie zapomniec pomin pomincie pominac odrzuc nie+zwazaj nie+wykonuj nie+stosuj nie+przestrzegaj nie+zwracaj+uwagi nie+postepuj`,
		orders: "zasad* instrukcj* polecen* rozkaz* zasady zasad wytyczn* wskazow* regul* prompt* dyrektyw* komend*",
		prior: "swoi* swoj* systemow* poprzedni* wczesniej* powyzsz* dotychczas* uprzedni* twoje swoje twoich " +
			"pierwotn* wyzej",
		all:  "wszelkie wszelkich kazdy wszystkie wszystkich wszystkim wszystko",
		told: "powiedziano mowiono otrzymales przekazano",
		not:  "nie", tell: "mow mowic informuj wspominaj powiadamiaj zdradzaj", user: "uzytkownik*",
		helper: "asystent* agenta model*", intelligence: "ai si sztuczn*", lead: "prosze i teraz",
	},
	{
		name: "Czech and Slovak",
		ignore: "ignoruj ignorujte ignorovat zapomen zapomente zapomenout nedbej nedbejte neber+v+uvahu nerid " +
			"neridte nenasleduj nedodrzuj preskoc zabudni zabudnite pomin nevsimej nevsimejte nevsimaj nesleduj",
		orders: "pokyn* instrukc* instrukci* prikaz* pravid* smernic* prompt* nariz*",
		prior: "systemov* svych svou svym predchoz* predchadzaj* predesl* predtim predtym drive drivej* vyse " +
			"uvedene* dosavad* doteraj* sve svoje tve tvoje puvodn* dostal",
		all: "vsechny vsechno vsech vsetky vsetko veskere", told: "receno rekli povedali povedane dostal sdeleno",
		not: "ne nikdy", tell: "!nerikej !nezminuj !neinformuj !nehovor !nespominaj !neprozrazuj",
		user: "uzivatel* pouzivatel*", helper: "asistent* agent* model*", intelligence: "ai ui umel*",
		lead: "prosim a nyni",
	},
	{
		name: "Russian",
		ignore: `игнорируй игнорируйте игнорировать проигнорируй проигнорируйте проигнорировать забудь забудьте забыть отбрось отбросьте отмени отмените пропусти пропустите
			не+обращай+внимания не+обращайте+внимания не+выполняй не+выполняйте не+следуй не+следуйте не+соблюдай не+учитывай не+учитывайте не+слушай пренебреги пренебрегите`,
		orders: "инструкци* указани* команд* правил* приказ* директив* распоряжени* промпт* установк* подсказк* " +
			"предписани*",
		prior: "своих своим своими систем* данн* предыдущ* прежн* предшеству* вышеуказанн* вышеизложенн* выше ранее " +
			"раньше прошл* свои твои ваши изначальн* полученн* до+этого",
		all: "любой всякие каждое все всё всех весь любые", told: "говорили сказали сказано сказал получил дали " +
			"велели",
		not: "не никогда", tell: "сообщай сообщайте говори говорите рассказывай рассказывайте упоминай упоминайте " +
			"уведомляй информируй сообщать говорить", user: "пользовател* юзер*",
		helper: "ассистент* помощник* агент* модел*", intelligence: "ии ai нейросет* искусственн*",
		lead: "пожалуйста и теперь",
	},
	{
		name: "Ukrainian",
		ignore: `ігноруй ігноруйте ігнорувати проігноруй проігноруйте забудь забудьте забути відкинь відкиньте скасуй не+зважай не+зважайте не+звертай+уваги не+звертайте+уваги
			не+виконуй не+виконуйте не+дотримуйся не+дотримуйтесь не+слідуй знехтуй знехтуйте`,
		orders: "інструкці* вказівк* команд* правил* наказ* директив* розпорядженн* промпт* настанов*",
		prior: "своїх своїм систем* дані попередн* вище раніше колишн* зазначен* дотеперішн* свої твої ваші " +
			"отриман* досі",
		all: "усі всі усе все всіх усіх будь-які", told: "казали сказали сказано отримав говорили",
		not: "не ніколи", tell: "кажи кажіть повідомляй повідомляйте розповідай розповідайте згадуй згадуйте",
		user:   "користувач*",
		helper: "асистент* помічник* агент* модел*", intelligence: "ші ai штучн*", lead: "ласка та тепер",
	},
	{
		name:   "Bulgarian, Serbian and Croatian",
		ignore: `игнорирай игнорирайте пренебрегни пренебрегнете забрави забравете игнориши игноришите заборави заборавите ignorisi ignorisite ignoriraj ignorirajte zanemari zanemarite zaboravi zaboravite`,
		orders: "инструкци* указания* команди* наредб* упутств* правила instrukcij* uput* naredb* pravila naredbe",
		prior:  "предишн* горн* досегашн* преди претходн* prethodn* ranij* gornj* dosadasnj* prije pre",
		all:    "всички сите све sve svih", not: "не ne", tell: "казвай казвайте govori reci spominji",
		user: "потребител* korisnik*", helper: "асистент* asistent*", intelligence: "ии ai",
	},
	{
		name: "Turkish",
		ignore: `yok+say yok+sayin yoksay yoksayin unut unutun unutunuz dikkate+alma dikkate+almayin goz+ardi+et goz+ardi+edin gozardi+et gormezden+gel gormezden+gelin
			uyma uymayin uymayiniz izleme izlemeyin yerine+getirme onemseme onemsemeyin bos+ver gecersiz+say gecersiz+sayin`,
		orders: "talimat* yonerge* komut* kural* emir* emri* istem istemi istemini yonlendirme*",
		prior:  "onceki once oncesi yukaridaki yukarida daha+once evvelki simdiye sistem verilen aldigin",
		all:    "tum tumu butun her hepsi hepsini", told: "soylenen verilen denilen ogretilen aldigin",
		tell: "!soyleme !soylemeyin !soz+etme !bahsetme !bahsetmeyin !bildirme !bildirmeyin !haber+verme",
		user: "kullanici*", helper: "asistan* model* ajan*", intelligence: "yapay", lead: "lutfen ve simdi",
	},
	{
		name: "Greek",
		ignore: `!αγνόησε αγνοήστε αγνοείστε ξέχνα ξεχάστε ξέχασε παράβλεψε παραβλέψτε μη+λάβεις+υπόψη μη+λάβετε+υπόψη μην+λάβεις+υπόψη μην+λάβετε+υπόψη
			μην+ακολουθείς μην+ακολουθήσεις μην+ακολουθείτε μην+ακολουθήσετε μην+υπακούς μην+τηρείς`,
		orders: "οδηγία εντολή κανόνα οδηγί* εντολ* κανόν* κανόνες οδηγιών εντολές προτροπή προτροπές υποδείξεις " +
			"κατευθύνσεις",
		prior: "αρχικές συστήματος προηγούμεν* παραπάνω πριν ανωτέρω νωρίτερα αρχικ* προγενέστερ* σου έλαβες μέχρι",
		all:   "όλες όλα όλους κάθε", told: "είπαν ειπώθηκε έλαβες δόθηκαν έδωσαν",
		not: "μη μην δεν", tell: "πεις πείτε αναφέρεις αναφέρετε ενημερώσεις ενημερώσετε",
		user: "χρήστη χρήστης χρηστών", helper: "βοηθό βοηθός πράκτορα μοντέλο", intelligence: "τεχνητής τεχνητή ai τν",
		lead: "παρακαλώ και",
	},
	{
		name:   "Arabic",
		ignore: `تجاهل تجاهلي تجاهلوا انس انسى أهمل إنس لا+تلتفت لا+تتبع لا+تنفذ لا+تلتزم لا+تأخذ لا+تهتم غض+النظر اترك اصرف+النظر`,
		orders: "التعليمات تعليمات* تعليماتك الأوامر أوامر* الإرشادات إرشادات* التوجيهات توجيهات* القواعد موجه* " +
			"المطالبات",
		prior: "النظام السابق السابقة سابقا سابقة أعلاه المذكورة قبل السالفة الماضية تلقيتها القديمة فوق الأصلية",
		all:   "جميع كل كافة كلها", told: "قيل تلقيتها أخبروك أعطيت",
		not: "لا ولا لم لن", tell: "تخبر تذكر تقل تعلم تبلغ تخبري تطلع", user: "المستخدم للمستخدم مستخدم",
		helper: "مساعد المساعد وكيل نموذج", intelligence: "الذكاء ذكاء الاصطناعي", lead: "رجاء فضلك الآن",
	},
	{
		name:   "Hebrew",
		ignore: `!התעלם !התעלמי !התעלמו להתעלם שכח שכחי שכחו אל+תתייחס אל+תתייחסי אל+תתייחסו אל+תפעל אל+תפעלי אל+תפעלו אל+תציית אל+תמלא אל+תבצע בטל`,
		orders: "הנחיה הוראה כלל פקודה הוראות ההוראות מההוראות להוראות הנחיות ההנחיות מההנחיות להנחיות פקודות " +
			"הפקודות מהפקודות כללים הכללים מהכללים הפרומפט פרומפט",
		prior: "המערכת קודמת הקודמות הקודמים קודמות הקודם קודם שלמעלה לעיל הנל שקיבלת שלך למעלה המקוריות עד+כה",
		all:   "כל מכל את+כל", told: "שנאמר נאמר שקיבלת אמרו",
		not: "אל ואל לא ולא", tell: "תספר תספרי תספרו תגיד תגידי תגידו תזכיר תודיע תיידע", user: "למשתמש המשתמש משתמש",
		helper: "עוזר העוזר סוכן מודל", intelligence: "הבינה בינה ai המלאכותית", lead: "אנא בבקשה",
	},
	{
		name: "Hindi",
		ignore: `अनदेखा+करें अनदेखा+करो अनदेखा+कर अनदेखा+कीजिए अनदेखी+करें अनदेखी+करो नजरअंदाज+करें नजरअंदाज+करो नजरअंदाज+कर नज़रअंदाज़+करें नज़रअंदाज़+करो उपेक्षा+करें उपेक्षा+करो
			भूल+जाओ भूल+जाएं भूल+जाएँ भूल+जाइए भूल+जा ध्यान+न+दें ध्यान+मत+दो ध्यान+न+दो पालन+मत+करो पालन+न+करें पालन+न+करो पालन+मत+करें रद्द+करें`,
		orders: "निर्देश निर्देशों निर्देशो आदेश आदेशों नियम नियमों हिदायत हिदायतों हिदायतें प्रॉम्प्ट अनुदेशों",
		prior:  "सिस्टम तक पिछला पिछले पिछली पूर्व पहले ऊपर पूर्ववर्ती उपरोक्त अपने तुम्हारे आपके मिले",
		all:    "हर प्रत्येक सभी सब सारे सारी सबको", told: "बताया कहा दिया",
		not: "न मत ना", tell: "बताओ बताएं बताएँ बताना बताइए कहो", user: "उपयोगकर्ता यूजर यूज़र प्रयोक्ता",
		helper: "सहायक असिस्टेंट एजेंट मॉडल", intelligence: "एआई ai कृत्रिम", lead: "कृपया और अब",
	},
	{
		name:   "Persian",
		ignore: `نادیده+بگیر نادیده+بگیرید فراموش+کن فراموش+کنید توجه+نکن توجه+نکنید پیروی+نکن پیروی+نکنید چشم+پوشی+کن`,
		orders: "دستور دستورات دستورها دستورالعمل* قوانین قواعد فرمان* فرامین راهنمایی*",
		prior:  "قبلی پیشین بالا پیش گذشته قبل", all: "تمام همه تمامی کلیه",
		told: "گفته", tell: "!نگو !نگویید !اطلاع+نده", user: "کاربر", helper: "دستیار", intelligence: "هوش مصنوعی",
	},
	{
		name:   "Vietnamese",
		ignore: `bỏ+qua phớt+lờ quên+đi quên+hết quên+tất+cả quên+mọi đừng+để+ý không+để+ý đừng+làm+theo không+làm+theo đừng+tuân không+tuân đừng+nghe lờ+đi mặc+kệ xem+nhẹ`,
		orders: "hướng+dẫn chỉ+dẫn chỉ+thị mệnh+lệnh quy+tắc yêu+cầu câu+lệnh lời+nhắc lệnh",
		prior:  "hệ+thống trước trên ban+đầu vừa+rồi của+bạn", all: "tất+cả mọi toàn+bộ hết",
		told: "được+nói đã+nói được+bảo",
		not:  "đừng không chớ", tell: "nói báo cho+biết tiết+lộ kể", user: "người+dùng", helper: "trợ+lý tác+nhân",
		intelligence: "ai trí+tuệ", lead: "hãy và vui+lòng",
	},
	{
		name:   "Indonesian and Malay",
		ignore: `abaikan abaikanlah lupakan lupakanlah kesampingkan jangan+hiraukan jangan+pedulikan jangan+ikuti jangan+turuti jangan+patuhi jangan+laksanakan jangan+ikut`,
		orders: "instruksi* arahan* perintah* petunjuk* aturan* panduan* peraturan prompt*",
		prior:  "sistem sampai sebelumnya sebelum di+atas terdahulu lalu tadi sebelum+ini awal anda+terima",
		all:    "semua seluruh segala", told: "dikatakan diberitahukan diberitahu diajarkan",
		not: "jangan tidak", tell: "beri+tahu beritahu beritahukan katakan sebutkan ceritakan", user: "pengguna",
		helper: "asisten pembantu agen", intelligence: "ai kecerdasan", lead: "tolong harap dan mohon",
	},
	{
		name:   "Swedish, Danish and Norwegian",
		ignore: "ignorera ignorer glom glem bortse se+bort strunta overse forbise hoppa+over",
		orders: "systeminstruktion* regel instruktion* instruks* anvisning* regler reglerna reglerne kommando* " +
			"direktiv* order* riktlinjer* retningslinjer* systemprompt* prompt* befaling*",
		prior: "systeminstruktion* systemprompt* tidigare foregaende ovan ovanstaende tidligere foregaende ovenfor " +
			"ovenstaende forrige innan for din dina dine tidigare* hittills hidtil",
		all: "alla allt alle alt samtliga", told: "hora sagt fortalt fatt",
		not: "inte aldrig ikke ikkje", notAfter: "inte ikke ikkje", follow: "folj folg adlyd",
		tell: "beratta namn saga sag fortell fortael sig nevn meddela informera", user: "anvandare* bruger* bruker*",
		helper: "assistent* agent*", intelligence: "ai ki", lead: "och og snalla nu",
	},
	{
		name:   "Finnish",
		ignore: "ohita ohittakaa sivuuta unohda unohtakaa jata+huomiotta ala+noudata alka+noudattako ala+valita",
		orders: "ohje ohjeet ohjeita ohjeesi kaskyt saannot maaraykset kehote kehotteet",
		prior:  "aiemmat aikaisemmat edelliset ylla edella annetut aiemmin", all: "kaikki kaikkia",
		told: "sanottu kerrottu", not: "ala alka", tell: "kerro mainitse", user: "kayttaja*",
		helper: "avustaja* assistentti*", intelligence: "tekoaly* ai",
	},
	{
		name:   "Romanian",
		ignore: "ignora ignorati uita uitati nu+urma nu+urmati nu+tine+cont nu+tineti+cont nu+respecta",
		orders: "instructiuni* instructiunile regulile reguli ordinele comenzile indicatiile",
		prior:  "anterioare precedente mai+sus dinainte initiale tale", all: "toate tot", told: "spus",
		not: "nu", tell: "spune spuneti mentiona", user: "utilizator*", helper: "asistent*", intelligence: "ia ai",
	},
	{
		name:   "Hungarian",
		ignore: "hagyd+figyelmen hagyja+figyelmen felejtsd felejtse ne+kovesd ne+kovesse ne+vedd ignorald",
		orders: "utasitas* szabaly* parancs* iranymutatas* eloiras*", prior: "korabbi elozo fenti eddigi elobbi",
		all: "minden osszes mindent", told: "mondtak mondott",
		not: "ne nem", tell: "mondd emlitsd szolj", user: "felhasznalo*", helper: "asszisztens*",
		intelligence: "mi ai mesterseges",
	},
	{
		name:   "Catalan",
		ignore: "ignoreu !oblida oblideu no+segueixis no+seguiu no+tinguis+en+compte",
		orders: "instruccions ordres regles indicacions", prior: "anteriors previes anterior abans",
		all:  "totes tots tot",
		told: "dit", not: "no", tell: "diguis", user: "usuari", helper: "assistent", intelligence: "ia",
	},
}
