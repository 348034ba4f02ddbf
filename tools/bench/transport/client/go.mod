// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
module gpushare-bench-transport

go 1.21
