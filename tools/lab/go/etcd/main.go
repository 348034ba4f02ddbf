// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors

// etcd, whose own main package cannot be installed by version because its go.mod has replacements.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() {
	etcdmain.Main(os.Args)
}
