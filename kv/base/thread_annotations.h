#pragma once
// SPDX-License-Identifier: Apache-2.0
/// Macros that state which mutex guards what. Clang checks them (-Wthread-safety, the preset
/// `clang`); for other compilers they are empty. See
/// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html.

#if defined(__clang__)
#define CAIRN_THREAD_ANNOTATION(attribute) __attribute__((attribute))
#else
#define CAIRN_THREAD_ANNOTATION(attribute)
#endif

/// After a field: it is read only while `mutex` is held, and written only while it is held
/// exclusively.
#define CAIRN_GUARDED_BY(mutex) CAIRN_THREAD_ANNOTATION(guarded_by(mutex))
/// After a pointer: the same for what it points to.
#define CAIRN_PT_GUARDED_BY(mutex) CAIRN_THREAD_ANNOTATION(pt_guarded_by(mutex))

/// After the parameters of a function: the caller holds the mutexes, holds them at least shared, or
/// does not hold them.
#define CAIRN_REQUIRES(...) CAIRN_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define CAIRN_REQUIRES_SHARED(...) CAIRN_THREAD_ANNOTATION(requires_shared_capability(__VA_ARGS__))
#define CAIRN_EXCLUDES(...) CAIRN_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))
/// After the parameters of a function: it locks (exclusively or shared), or unlocks, the mutexes;
/// without an argument, the mutex that the object is or holds. In the destructor of a scoped lock,
/// CAIRN_RELEASE matches both kinds of lock.
#define CAIRN_ACQUIRE(...) CAIRN_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define CAIRN_ACQUIRE_SHARED(...) CAIRN_THREAD_ANNOTATION(acquire_shared_capability(__VA_ARGS__))
#define CAIRN_RELEASE(...) CAIRN_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define CAIRN_RELEASE_SHARED(...) CAIRN_THREAD_ANNOTATION(release_shared_capability(__VA_ARGS__))

/// Between `class` and the name: the class is a mutex, or holds one for its scope.
#define CAIRN_CAPABILITY(name) CAIRN_THREAD_ANNOTATION(capability(name))
#define CAIRN_SCOPED_CAPABILITY CAIRN_THREAD_ANNOTATION(scoped_lockable)

/// After the parameters of a function whose locking the analysis cannot follow; state the reason.
#define CAIRN_NO_THREAD_SAFETY_ANALYSIS CAIRN_THREAD_ANNOTATION(no_thread_safety_analysis)
