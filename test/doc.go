// Package test holds the tests that drive the built program from outside, as
// its users do. It imports nothing of the product: what it knows is bin/abx.
package test
