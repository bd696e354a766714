#pragma once
/// State dicts that pass between "a shard on each rank" and "whole on some": gather, broadcast,
/// distribute.
///
/// Counterparts of torch.distributed._state_dict_utils. Ranks of meshes are those of the
/// communicator. Ranks may have different keys (pipeline stages); ranks outside a tensor's mesh
/// hold nothing of it, and every rank of the mesh must have the key.
///
/// Memory: beside the result a call takes at most `buffer_bytes` of buffers for tensor bytes, plus
/// descriptions of the leaves (some 150 bytes a leaf, and what plain values take). A tensor that is
/// larger goes in pieces, small ones go together. Bytes that lie in one run on a side go from or
/// into the tensors themselves, without a buffer.
///
/// Devices: tensors of a state may lie on devices (TensorView::device), and results then lie there
/// too: a gathered tensor where its shards are, a tensor that the target has no memory for where
/// its view says; with cpu_offload all are in host memory. Over a communicator of that device
/// (Communicator::device) their bytes go from device to device, and buffers lie there; over others
/// they pass through host memory, page-locked where the system lets it. The tensors are read and
/// written after all that `streams` held when the call began; the call returns when its work is
/// done, so that what follows on any stream comes after it.
///
/// Two communicators: with `tensor_communicator` the bytes of tensors go over that one and all
/// else, so every vote, over the other: device memory over NCCL, say, and the rest over TCP. Both
/// have the same ranks in the same order.
///
/// Collectives: every rank calls them with the same options (but for `targets`, `memory`, `streams`
/// and `report`). A rank that finds its input bad says so in a vote, so that all ranks return the
/// same error, which names rank and key; nothing has been written then. Every wait is a call of the
/// communicator and ends within its deadline; after an error of the communicator itself
/// (kUnavailable) targets hold anything.
///
/// Threads: one call at a time for each communicator; states must not change during a call.

#include "core/collectives/broadcast_state_dict.h"
#include "core/collectives/distribute_state_dict.h"
#include "core/collectives/gather_state_dict.h"
#include "core/collectives/transfer.h"
