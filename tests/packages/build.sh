# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
# Keys, packages in several versions, and signed repositories of them, below /srv. Arguments: versions.
set -euo pipefail
mkdir -p /srv/deb /srv/rpm /srv/gnupg /tmp/build
chmod 700 /srv/gnupg
export GNUPGHOME=/srv/gnupg
for who in first second; do
    gpg -q --batch --passphrase '' --quick-gen-key "$who <$who@example.org>" rsa2048 sign never
    gpg -q --armor --export "$who" > "/srv/$who.asc"
    echo "$who $(gpg --with-colons --list-keys "$who" | sed -n 's/^fpr:::::::::\(.*\):$/\1/p' | head -1)"
done > /srv/fingerprints
cat /srv/first.asc /srv/second.asc > /srv/both.asc

ctk() { # version; the program itself is too large to be packed again and again
    printf '#!/bin/sh\ncase "$*" in\n    --version) echo "NVIDIA Container Toolkit CLI version %s" ;;\n' "$1"
    printf '    *) exec /usr/local/lib/nvidia-ctk "$@" ;;\nesac\n'
}

package() { # name version requires postinst
    local folder=/tmp/build/$1-$2
    mkdir -p "$folder/DEBIAN" "$folder/usr/bin"
    if [ "$1" = nvidia-container-toolkit-base ]; then ctk "$2" > "$folder/usr/bin/nvidia-ctk"; else echo "$2" > "$folder/usr/bin/$1"; fi
    chmod 755 "$folder"/usr/bin/*
    {
        printf 'Package: %s\nVersion: %s-1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n' "$1" "$2"
        if [ -n "$3" ]; then printf 'Depends: %s (= %s-1)\n' "$3" "$2"; fi
    } > "$folder/DEBIAN/control"
    if [ -n "$4" ]; then
        printf '#!/bin/sh\n%s\n' "$4" > "$folder/DEBIAN/postinst"
        chmod 755 "$folder/DEBIAN/postinst"
    fi
    dpkg-deb --root-owner-group -b "$folder" /srv/deb > /dev/null
    {
        printf 'Name: %s\nVersion: %s\nRelease: 1\nSummary: x\nLicense: x\nBuildArch: noarch\n' "$1" "$2"
        if [ -n "$3" ]; then printf 'Requires: %s = %s-1\n' "$3" "$2"; fi
        # No package of this rpmdb has /bin/sh.
        printf 'AutoReq: no\n%%description\nx\n'
        if [ -n "$4" ]; then printf '%%post -p <lua>\nos.execute([[\n%s\n]])\n' "$4"; fi
        printf '%%install\ncp -r %s/usr %%{buildroot}/\n%%files\n/usr/bin/*\n' "$folder"
    } > "$folder.spec"
    rpmbuild -bb --quiet --define "_rpmdir /srv/rpm" "$folder.spec" 2> /dev/null
}

for version in "$@"; do
    # As NVIDIA's own package does.
    config='if [ -e /usr/local/lib/nvidia-ctk ]; then
        nvidia-ctk --quiet config --config-file=/etc/nvidia-container-runtime/config.toml --in-place
    fi'
    package nvidia-container-toolkit-base "$version" "" "$config"
    package nvidia-container-toolkit "$version" nvidia-container-toolkit-base ""
    package libnvidia-container1 "$version" "" ""
    package libnvidia-container-tools "$version" libnvidia-container1 ""
done
# One whose installation waits, so that it can be killed.
package slow 1.0 "" 'if [ -e /tmp/hang ]; then touch /tmp/hangs; sleep 600; fi'

apt_repository() { # folder key
    (
        cd "$1"
        apt-ftparchive packages . > Packages
        apt-ftparchive release . > /tmp/Release
        mv /tmp/Release Release
        gpg -q --clearsign -u "$2" -o InRelease Release
    )
}
rpm_repository() { # folder key
    createrepo_c -q "$1"
    gpg -q --armor -u "$2" --detach-sign "$1/repodata/repomd.xml"
}
cp -r /srv/deb /srv/deb-second
cp -r /srv/rpm /srv/rpm-second
apt_repository /srv/deb first
rpm_repository /srv/rpm first
apt_repository /srv/deb-second second
rpm_repository /srv/rpm-second second
# Of another distribution: nothing of ours in it.
mkdir /srv/deb-empty /srv/rpm-empty
apt_repository /srv/deb-empty first
rpm_repository /srv/rpm-empty first
