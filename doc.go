// Package abx is the root of Agent Sandbox and holds no code of its own: only
// the tests of the house's rules (house_test.go). The program is cmd/abx, the
// Go SDK is package sandbox.
package abx
