package tool

import "github.com/agent-sandbox/abx/internal/mcp/wire"

// inputSchema writes the schema of params. It stays in the subset that strict
// clients take: no $ref, no oneOf, nothing closed.
func inputSchema(params []param) []byte {
	var props, schema wire.Builder
	var required []string
	for _, p := range params {
		props.Raw(p.name, p.schema())
		if p.required {
			required = append(required, p.name)
		}
	}
	schema.String("type", "object")
	schema.Raw("properties", props.JSON())
	if len(required) > 0 {
		schema.Strings("required", required)
	}
	return schema.JSON()
}

func (p *param) schema() []byte {
	var b wire.Builder
	b.String("type", p.kind)
	b.String("description", p.doc)
	if len(p.enum) > 0 {
		b.Strings("enum", p.enum)
	}
	if p.kind == kindWords {
		b.Raw("additionalProperties", []byte(`{"type":"string"}`))
	}
	if p.kind == kindWhole {
		b.Int("minimum", p.least)
		if p.most > 0 && p.most < maxOffset {
			b.Int("maximum", p.most)
		}
	}
	if p.whole != 0 {
		b.Int("default", p.whole)
	}
	if p.text != "" {
		b.String("default", p.text)
	}
	return b.JSON()
}

// A field is one member of a tool's structured result.
type field struct {
	name, kind, doc string
	always          bool     // in every result
	items           []byte   // schema of an array's items
	fields          []field  // of an object
	enum            []string // of a string
}

// outputSchema writes the schema of a structured result.
func outputSchema(fields []field) []byte {
	var props, schema wire.Builder
	required := []string{}
	for _, f := range fields {
		props.Raw(f.name, f.schema())
		if f.always {
			required = append(required, f.name)
		}
	}
	schema.String("type", "object")
	schema.Raw("properties", props.JSON())
	if len(required) > 0 {
		schema.Strings("required", required)
	}
	return schema.JSON()
}

func (f *field) schema() []byte {
	if f.kind == "object" {
		return outputSchema(f.fields)
	}
	var b wire.Builder
	b.String("type", f.kind)
	if f.doc != "" {
		b.String("description", f.doc)
	}
	if len(f.enum) > 0 {
		b.Strings("enum", f.enum)
	}
	if f.items != nil {
		b.Raw("items", f.items)
	}
	return b.JSON()
}

var (
	sandboxID = param{name: "sandbox_id", kind: kindText, doc: "the id of the sandbox, from create_sandbox; leave it out for the default sandbox"}

	stringItems = []byte(`{"type":"string"}`)

	// reportFields are in the result of every tool that uses a sandbox.
	reportFields = []field{
		{name: "sandbox_id", kind: "string", doc: "the sandbox that was made for this call, since none was named"},
		{name: "notes", kind: "array", doc: "what else matters, in sentences", items: stringItems},
	}
)
