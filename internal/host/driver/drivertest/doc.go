// Package drivertest holds the suite that every driver must pass, Run, and
// Fake, a driver for the tests of what stands above one. Only _test.go files
// import it.
package drivertest
