// SPDX-License-Identifier: Apache-2.0
// Copyright: gpushare.kubernetes contributors
module gpushare-test-device-plugin

go 1.24.0

require (
	google.golang.org/grpc v1.71.0
	k8s.io/kubelet v0.33.0
)
