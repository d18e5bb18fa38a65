package tool

import (
	"regexp"
	"strings"
)

// Signs of trouble in what programs write, whatever their case where that
// differs between programs.
var (
	noInput = regexp.MustCompile(`(?m)^EOFError(: EOF when reading.*)?\r?$`) // not pickle's "EOFError: Ran out of input"
	// noNames is what programs write that found no name or no way: resolvers,
	// Node and npm, Go, JVMs.
	noNames = regexp.MustCompile(`\b(EAI_AGAIN|ENOTFOUND|ENOTCACHED|ENETUNREACH|EHOSTUNREACH|UnknownHostException|NameResolutionError)\b|\bgetaddrinfo\b|` +
		`dial (tcp|udp): lookup |(?i:could not resolve (host|proxy)|temporary failure (in name resolution|resolving)|failure in name resolution|` +
		`name or service not known|no address associated with hostname|no such host|network is unreachable|no route to host|` +
		`unable to resolve host|bad address '|failed to lookup address information|dns error)`)
	// noIndex is what installers write that have no index to look into. It is
	// a sign of a missing network only where there is none.
	noIndex = regexp.MustCompile(`No matching distribution found|Could not find a version that satisfies|Unable to locate package|` +
		`Could not open lock file /var/lib/(dpkg|apt)|/var/lib/apt/lists/\S* is missing|Failed to fetch https?:|ERR_PNPM_NO_OFFLINE|Could not find a valid gem`)
	// noBash is what dash writes of what only bash knows.
	noBash = regexp.MustCompile(`\bsh: (?:\d+: )?(?:Syntax error: (?:"\(" unexpected|Bad for loop variable|redirection unexpected)|Bad substitution|` +
		`set: Illegal option -o|(?:source|\[\[|shopt|declare|pushd|popd): not found)`)
	// noModule is a package that is not installed; a file of the program's own
	// has a path.
	noModule = regexp.MustCompile(`ModuleNotFoundError: No module named |ImportError: No module named |Cannot find (module|package) '[^'./][^']*'|there is no package called `)
)

// hints adds notes about troubles that a program words badly. It reports
// whether the network was missed.
func (p *report) hints(output string, o *outcome, network string) (missed bool) {
	if o.exitCode != 0 && noInput.MatchString(output) {
		p.note("The program waited for input, and there is none: give it by a pipe (`printf 'text\\n' | program`), a file or arguments.")
	}
	if o.exitCode != 0 && noBash.MatchString(output) {
		p.note("`sh` is not bash here: give such a line to `bash -c '...'`, or to run_code with language shell, which is bash.")
	}
	if network == noNetwork {
		return p.withoutNetwork(output, o.exitCode)
	}
	if o.exitCode == 0 || !noNames.MatchString(output) {
		return false
	}
	if network == "allow" {
		p.note("This sandbox reaches allowed hosts only; the name is probably not one of them.")
	} else {
		p.note("The name could not be resolved: the sandbox may have no network, or the name may not exist.")
	}
	return true
}

// withoutNetwork notes what cannot be had in a sandbox that has no network. The
// code of a whole pipeline says nothing: `npm install | tail` ends with 0.
func (p *report) withoutNetwork(output string, exitCode int) (missed bool) {
	switch {
	case noNames.MatchString(output), noIndex.MatchString(output):
		p.note("This sandbox has no network: names cannot be resolved and nothing can be downloaded. Use what is installed (`pip list`), or bring files in by write_file.")
		return true
	case exitCode != 0 && noModule.MatchString(output):
		p.note("Packages cannot be downloaded, as this sandbox has no network: %s shows what is there. Do without, or bring its files in by write_file.", lister(output))
	}
	return false
}

// lister is the command that shows the packages of the language that misses one.
func lister(output string) string {
	if strings.Contains(output, "Cannot find ") {
		return "`npm ls -g`"
	}
	return "`pip list`"
}
