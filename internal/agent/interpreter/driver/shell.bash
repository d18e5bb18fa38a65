# Shell kernel of the sandbox's code interpreter: a bash that reads cells and
# keeps variables, functions, aliases, options and folder between them.
#
# $1 is the kernel's folder: FIFOs in, out, stdout and stderr; the files pre and
# cell, written by the agent; and the file state, written here. The FIFOs in and
# out are opened for one message each, so no child of a cell ever holds them.
#
#   agent:  run ID\n
#   kernel: ready VERSION\0   done ID CODE CWD\0
#
# `exit`, `set -e` and an interrupt end this bash. Its EXIT trap then saves the
# state and starts this file anew in the same process; $2 is what to report.
__abx_dir=$1 __abx_file=$0 __abx_bash=$BASH
set -- "${2-}" # the state that is read back holds variables, not arguments
shopt -s expand_aliases

__abx_save() {
  {
    builtin shopt -p
    builtin set +o
    builtin umask -p
    builtin trap -p TERM HUP QUIT USR1 USR2 WINCH
    builtin declare -p
    builtin declare -f
    builtin declare -Fx
    builtin alias -p
  } >| "$__abx_dir/state" 2>/dev/null
}

# Options that would disturb our own commands hold for one cell.
__abx_plain() {
  builtin set +euvxnC
  [[ -o posix ]] || return 0
  builtin set +o posix
  builtin unset POSIXLY_CORRECT
  builtin shopt -s expand_aliases # posix mode took it along
}

__abx_leave() {
  __abx_code=$?
  { __abx_plain; } 2>/dev/null
  builtin trap - DEBUG RETURN ERR
  builtin trap : INT
  if [[ -n ${__abx_on_exit-} ]]; then
    __abx_run=$__abx_on_exit __abx_on_exit=
    builtin eval "$__abx_run"
  fi
  __abx_undo
  __abx_save
  builtin exec "$__abx_bash" --norc --noprofile "$__abx_file" "$__abx_dir" "$__abx_id $__abx_code"
}

# An EXIT trap of a cell runs when the cell leaves its shell by `exit`. Ours
# stays; subshells have traps of their own.
trap() {
  if [[ $BASHPID != "$$" || $# -lt 2 || $1 == -[lp]* ]]; then
    builtin trap "$@"
    return
  fi
  [[ $1 == -- ]] && builtin shift
  local __abx_do=$1 __abx_s __abx_other=()
  for __abx_s in "${@:2}"; do
    case ${__abx_s^^} in
      EXIT | SIGEXIT | 0) [[ $__abx_do == - ]] && __abx_on_exit= || __abx_on_exit=$__abx_do ;;
      *) __abx_other+=("$__abx_s") ;;
    esac
  done
  [[ ${#__abx_other[@]} == 0 ]] || builtin trap -- "$__abx_do" "${__abx_other[@]}"
}

__abx_set() { # a variable for one cell
  __abx_names+=("$1")
  if [[ -v $1 ]]; then
    __abx_values+=("=${!1}")
    [[ ${!1@a} == *x* ]] && __abx_flags+=(x) || __abx_flags+=(-)
  else
    __abx_values+=("") __abx_flags+=(-)
  fi
  builtin export "$1=$2"
}

__abx_undo() {
  local __abx_i
  for ((__abx_i = ${#__abx_names[@]} - 1; __abx_i >= 0; __abx_i--)); do
    if [[ -z ${__abx_values[__abx_i]} ]]; then
      builtin unset "${__abx_names[__abx_i]}"
      continue
    fi
    builtin printf -v "${__abx_names[__abx_i]}" %s "${__abx_values[__abx_i]:1}"
    [[ ${__abx_flags[__abx_i]} == x ]] || builtin export -n "${__abx_names[__abx_i]}"
  done
  __abx_names=() __abx_values=() __abx_flags=()
}

__abx_repair() {
  exec </dev/null >"$__abx_dir/stdout" 2>"$__abx_dir/stderr"
  [[ -d $PWD ]] && return
  local __abx_old=$PWD __abx_new=$PWD
  while [[ -n $__abx_new ]]; do
    __abx_new=${__abx_new%/*}
    builtin cd -- "${__abx_new:-/}" 2>/dev/null && break
  done
  builtin printf 'the working folder %s is gone; now in %s\n' "$__abx_old" "$PWD" >&2
}

__abx_finish() { # code
  __abx_plain
  builtin trap : INT
  builtin trap - DEBUG RETURN ERR
  __abx_undo
  __abx_open=
  builtin printf 'done %s %s %s\0' "$__abx_id" "$1" "$PWD" >"$__abx_dir/out"
}

__abx_names=() __abx_values=() __abx_flags=() __abx_open=

# One compound command, read whole before a cell can define an alias.
{
  if [[ -n $1 ]]; then
    builtin source "$__abx_dir/state" 2>/dev/null
  else
    builtin printf 'ready %s\0' "$BASH_VERSION" >"$__abx_dir/out"
  fi
  __abx_again=$1 __abx_open=
  set --
  builtin trap __abx_leave EXIT
  builtin trap : INT
  [[ -z $__abx_again ]] || builtin printf 'done %s %s\0' "$__abx_again" "$PWD" >"$__abx_dir/out"
  while
    [[ -z $__abx_open ]] || __abx_finish 0 # after `continue` in a cell
    IFS=' ' builtin read -r __abx_op __abx_id <"$__abx_dir/in"
  do
    __abx_repair
    builtin source "$__abx_dir/pre"
    __abx_open=1
    builtin trap 'builtin exit 130' INT
    builtin source "$__abx_dir/cell"
    { __abx_finish $?; } 2>/dev/null
  done
  builtin exit 0 # after `break` in a cell
}
