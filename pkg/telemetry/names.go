package telemetry

// Names of attributes: those of the OpenTelemetry semantic conventions for messaging, generative AI and HTTP, and our
// own below "conclave.".
const (
	ErrorType = "error.type"

	MessagingSystem        = "messaging.system"
	MessagingOperation     = "messaging.operation.name"
	MessagingOperationType = "messaging.operation.type"
	MessagingDestination   = "messaging.destination.name"
	MessagingBodySize      = "messaging.message.body.size"

	GenAIOperation      = "gen_ai.operation.name" // chat, embeddings or execute_tool
	GenAIProvider       = "gen_ai.provider.name"
	GenAIConversation   = "gen_ai.conversation.id"
	GenAIRequestModel   = "gen_ai.request.model"
	GenAIResponseModel  = "gen_ai.response.model"
	GenAIFinishReasons  = "gen_ai.response.finish_reasons"
	GenAIInputTokens    = "gen_ai.usage.input_tokens"
	GenAIOutputTokens   = "gen_ai.usage.output_tokens"
	GenAIToolName       = "gen_ai.tool.name"
	GenAIToolCallID     = "gen_ai.tool.call.id"
	GenAIInputMessages  = "gen_ai.input.messages"      // content
	GenAIOutputMessages = "gen_ai.output.messages"     // content
	GenAIToolArguments  = "gen_ai.tool.call.arguments" // content
	GenAIToolResult     = "gen_ai.tool.call.result"    // content
	GenAIOperationChat  = "chat"
	GenAIOperationEmbed = "embeddings"
	GenAIOperationTool  = "execute_tool"

	HTTPMethod = "http.request.method"
	HTTPRoute  = "http.route"

	ServiceName      = "service.name"
	ServiceNamespace = "service.namespace"
	HostName         = "host.name" // the name of a machine that joined

	Query        = "conclave.query.id"
	Attempt      = "conclave.attempt" // of a redelivered message
	Role         = "conclave.model.role"
	FirstTokenMS = "conclave.model.first_token_ms"
	Decision     = "conclave.decision" // allowed, approved or denied
	Layer        = "conclave.policy.layer"
	Rule         = "conclave.policy.rule"
)
