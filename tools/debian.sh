# Sourced by other tools: Debian's programs in our own folder, without installing them.

# debian PROGRAM [PACKAGE]: sees to it that there is one, in the search path or as
# .tools/PROGRAM/PROGRAM, fetched with the libraries that are not there. PACKAGE has it, PROGRAM
# unless said.
debian() {
  local program=$1 from=${2:-$1}
  command -v "$program" >/dev/null && return
  [ -x ".tools/$program/$program" ] && return
  command -v apt-get >/dev/null || {
    echo "$program is missing: install it with this system's package manager" >&2
    return 1
  }
  mkdir -p ".tools/$program/packages"
  local wanted package missing=()
  wanted=$(apt-cache depends --recurse --no-recommends --no-suggests --no-conflicts --no-breaks --no-replaces --no-enhances "$from" |
    grep '^[a-z]' | sort -u)
  for package in $wanted; do
    dpkg -s "$package" >/dev/null 2>&1 || missing+=("$package")
  done
  (cd ".tools/$program/packages" && apt-get download -q "${missing[@]}") || return 1
  for package in ".tools/$program/packages"/*.deb; do dpkg -x "$package" ".tools/$program"; done
  rm -r ".tools/$program/packages"
  cat >".tools/$program/$program" <<WRAPPER
#!/bin/sh
root=\$(dirname "\$(readlink -f "\$0")")
export LD_LIBRARY_PATH="\$(find "\$root" -name '*.so*' -printf '%h:' | tr ':' '\n' | sort -u | tr '\n' ':')"
export PERL5LIB="\$(find "\$root/usr/share/perl5" "\$root"/usr/lib/*/perl5/5.* -maxdepth 0 -printf '%p:' 2>/dev/null)"
export PATH="\$PATH:\$root/usr/bin:\$root/usr/sbin"
for file in "\$root/usr/bin/$program" "\$root/usr/sbin/$program"; do
  [ -x "\$file" ] && exec "\$file" "\$@"
done
echo "\$root has no program $program" >&2
exit 127
WRAPPER
  chmod +x ".tools/$program/$program"
}
