# Sourced by build_debs.sh and build_wheels.sh, in the project's root and with their arguments. Sets the variables $out,
# $build and $install from these. --help prints the comment at the top of the script.
usage() { sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "deploy/${0##*/}"; }

out=dist build= install=yes
while [ $# -gt 0 ]; do
  case $1 in
    --out | --build)
      [ $# -gt 1 ] || { echo "$1 needs a folder" >&2; exit 2; }
      printf -v "${1#--}" %s "$2"
      shift ;;
    --no-install) install= ;;
    -h | --help) usage; exit 0 ;;
    *) echo "unknown option $1" >&2; usage >&2; exit 2 ;;
  esac
  shift
done
