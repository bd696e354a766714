#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Collectives that convert state dicts between one shard per rank and full states on some ranks:
/// gather, broadcast, distribute.
///
/// They correspond to torch.distributed._state_dict_utils. The ranks of meshes are ranks of the
/// communicator. Ranks may have different keys (pipeline stages). Ranks that are not in the mesh of
/// a tensor hold nothing of it; every rank of the mesh must have the key.
///
/// Memory: in addition to the result, a call needs at most `buffer_bytes` for buffers of tensor
/// bytes, and descriptions of the leaves (about 150 bytes per leaf, and the values). Larger tensors
/// are sent in parts, small ones together. Bytes that are contiguous in memory are sent from, or
/// received in, the tensors themselves, without a buffer.
///
/// Devices: tensors of a state may be in device memory (TensorView::device). The results are then
/// on the same device: a gathered tensor on the device of its shards, and a tensor for which the
/// target has no memory on the device of its view; with cpu_offload all are in host memory. A
/// communicator of the device (Communicator::device) sends bytes from device to device, with
/// buffers in device memory. With any other communicator bytes pass through host memory, which is
/// page-locked if the system allows it. The tensors are accessed after all work that `streams`
/// contained when the call began. The call returns when its work is complete, so that all later
/// work on any stream runs after it.
///
/// Two communicators: with `tensor_communicator`, only tensors are sent over that one. Everything
/// else, such as statuses, is sent over the communicator of the call. For example, device memory is
/// sent over NCCL and the rest over TCP. Both have the same ranks in the same order.
///
/// Collectives: every rank calls them with the same options, except for `targets`, `memory`,
/// `streams` and `report`. If a rank rejects its arguments, all ranks return the same error, which
/// names the rank and the key, and nothing has been written. Every wait is a call of the
/// communicator and ends within its deadline. After an error of the communicator itself
/// (kUnavailable) the contents of targets are unspecified.
///
/// Threads: one call at a time per communicator. States must not change during a call.

#include "core/collectives/broadcast_options.h"
#include "core/collectives/broadcast_state_dict.h"
#include "core/collectives/gather_state_dict.h"
