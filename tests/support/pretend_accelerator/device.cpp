// A device that computes at once, on the CPU, and takes its time afterwards.
//
// Values are those of torch's CPU kernels. Time is charged to streams: every operation makes its
// stream end later, and whoever synchronizes waits until then. Streams, events, the threads of
// autograd's engine and the allocator's tensors are those of a real backend (PrivateUse1), so that
// torch's own DistributedDataParallel and fully_shard run as they do on a GPU.

#include <ATen/EmptyTensor.h>
#include <ATen/autocast_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/native/Resize.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/set_native.h>
#include <ATen/ops/view_native.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <pybind11/pybind11.h>
#include <torch/library.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <list>
#include <mutex>
#include <thread>

namespace {

using Ns = int64_t;
constexpr auto TYPE = c10::DeviceType::PrivateUse1;
constexpr int STREAMS = 64;

Ns now() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

// When something on the device is over: known at once, or once all ranks have reached a collective.
class Moment {
 public:
  explicit Moment(Ns at) : known_(true), at_(at) {}
  Moment() = default;

  void set(Ns at) {
    std::vector<std::function<void(Ns)>> then;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      known_ = true;
      at_ = at;
      then.swap(then_);
    }
    changed_.notify_all();
    for (auto& call : then) call(at);
  }
  void then(std::function<void(Ns)> call) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (!known_) {
        then_.push_back(std::move(call));
        return;
      }
    }
    call(at_);
  }
  bool is_over() {
    std::lock_guard<std::mutex> lock(mutex_);
    return known_ && at_ <= now();
  }
  Ns at() {
    std::lock_guard<std::mutex> lock(mutex_);
    TORCH_CHECK(known_, "the event has not completed");
    return at_;
  }
  // Called without the GIL.
  void wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return known_; });
    const Ns left = at_ - now();
    lock.unlock();
    if (left > 0) std::this_thread::sleep_for(std::chrono::nanoseconds(left));
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool known_ = false;
  Ns at_ = 0;
  std::vector<std::function<void(Ns)>> then_;
};
using MomentPtr = std::shared_ptr<Moment>;

// `duration` after `before`, or after now where that is later.
MomentPtr after(const MomentPtr& before, Ns duration) {
  auto result = std::make_shared<Moment>();
  const Ns queued = now();
  before->then([=](Ns at) { result->set(std::max(at, queued) + duration); });
  return result;
}

MomentPtr later_of(const MomentPtr& first, const MomentPtr& second) {
  auto result = std::make_shared<Moment>();
  first->then([=](Ns one) { second->then([=](Ns other) { result->set(std::max(one, other)); }); });
  return result;
}

struct Stream {
  std::mutex mutex;
  MomentPtr end = std::make_shared<Moment>(0);
  std::deque<MomentPtr> queued;
};
Stream streams[STREAMS];
std::atomic<int> next_stream{1};
thread_local int current = 0;
thread_local int in_fallback = 0;
std::atomic<Ns> operation_ns{2'000};
std::atomic<double> ns_per_byte{0};
std::atomic<size_t> run_ahead{1'024};
std::atomic<int64_t> synchronizations{0}, events_recorded{0};

void wait_for(const MomentPtr& moment) {
  if (PyGILState_Check()) {
    pybind11::gil_scoped_release release;
    moment->wait();
  } else {
    moment->wait();
  }
}

void charge(int stream, Ns duration) {
  MomentPtr oldest;
  {
    auto& queue = streams[stream];
    std::lock_guard<std::mutex> lock(queue.mutex);
    queue.end = after(queue.end, duration);
    queue.queued.push_back(queue.end);
    if (queue.queued.size() > run_ahead) {
      oldest = queue.queued.front();
      queue.queued.pop_front();
    }
  }
  if (oldest) wait_for(oldest);
}

MomentPtr end_of(int stream) {
  std::lock_guard<std::mutex> lock(streams[stream].mutex);
  return streams[stream].end;
}

void synchronize(int stream) {
  ++synchronizations;
  wait_for(end_of(stream));
}

// --- collectives: each rank writes when it has arrived into memory that all share ----------------

struct Collective {
  MomentPtr reached, over;
  std::atomic<Ns>* arrivals;
  int ranks, rank;
  Ns moving;
  bool published = false;
};

class Exchange {
 public:
  void add(Collective collective) {
    std::lock_guard<std::mutex> lock(mutex_);
    pending_.push_back(std::move(collective));
    if (!started_) {
      started_ = true;
      std::thread([this] { run(); }).detach();
    }
    changed_.notify_one();
  }

 private:
  void run() {
    std::unique_lock<std::mutex> lock(mutex_);
    for (;;) {
      changed_.wait(lock, [this] { return !pending_.empty(); });
      auto work = std::move(pending_);
      pending_.clear();
      lock.unlock();
      for (auto each = work.begin(); each != work.end();) {
        each = advance(*each) ? work.erase(each) : std::next(each);
      }
      std::this_thread::sleep_for(std::chrono::microseconds(100));
      lock.lock();
      pending_.splice(pending_.begin(), work);
    }
  }
  static bool advance(Collective& each) {
    if (!each.published) {
      Ns at = 0;
      each.reached->then([&](Ns known) { at = known; });
      if (at == 0) return false;
      each.arrivals[each.rank].store(at);
      each.published = true;
    }
    Ns last = 0;
    for (int rank = 0; rank < each.ranks; ++rank) {
      const Ns at = each.arrivals[rank].load();
      if (at == 0) return false;
      last = std::max(last, at);
    }
    each.over->set(last + each.moving);
    return true;
  }
  std::mutex mutex_;
  std::condition_variable changed_;
  std::list<Collective> pending_;
  bool started_ = false;
};

void collective(uintptr_t arrivals, int ranks, int rank, Ns moving) {
  static Exchange* exchange = new Exchange;
  auto& queue = streams[current];
  std::lock_guard<std::mutex> lock(queue.mutex);
  auto over = std::make_shared<Moment>();
  exchange->add({after(queue.end, 0), over, reinterpret_cast<std::atomic<Ns>*>(arrivals), ranks,
                 rank, moving});
  queue.end = over;
}

// --- what torch asks of a device -----------------------------------------------------------------

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return TYPE; }
  c10::Device exchangeDevice(c10::Device) const override { return {TYPE, 0}; }
  c10::Device getDevice() const override { return {TYPE, 0}; }
  void setDevice(c10::Device) const override {}
  void uncheckedSetDevice(c10::Device) const noexcept override {}
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
  static c10::Stream stream(int number) {
    return c10::Stream(c10::Stream::UNSAFE, c10::Device(TYPE, 0), number);
  }
  c10::Stream getStream(c10::Device) const override { return stream(current); }
  c10::Stream getDefaultStream(c10::Device) const override { return stream(0); }
  c10::Stream getNewStream(c10::Device, int) const override {
    const int number = next_stream++;
    TORCH_CHECK(number < STREAMS, "too many streams");
    return stream(number);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream other) const override {
    const int before = current;
    current = static_cast<int>(other.id());
    return stream(before);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    ++events_recorded;
    if (*event == nullptr) *event = new MomentPtr;
    *static_cast<MomentPtr*>(*event) = after(end_of(static_cast<int>(stream.id())), 0);
  }
  void block(void* event, const c10::Stream& stream) const override {
    if (event == nullptr) return;
    auto& queue = streams[stream.id()];
    std::lock_guard<std::mutex> lock(queue.mutex);
    queue.end = later_of(queue.end, *static_cast<MomentPtr*>(event));
  }
  bool queryEvent(void* event) const override {
    return event == nullptr || (*static_cast<MomentPtr*>(event))->is_over();
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<MomentPtr*>(event);
  }
  double elapsedTime(void* earlier, void* later, const c10::DeviceIndex) const override {
    const Ns between = (*static_cast<MomentPtr*>(later))->at() -
                       (*static_cast<MomentPtr*>(earlier))->at();
    return static_cast<float>(between / 1e6);
  }
  bool queryStream(const c10::Stream& stream) const override {
    return end_of(static_cast<int>(stream.id()))->is_over();
  }
  void synchronizeStream(const c10::Stream& stream) const override {
    synchronize(static_cast<int>(stream.id()));
  }
  void synchronizeEvent(void* event) const override {
    ++synchronizations;
    wait_for(*static_cast<MomentPtr*>(event));
  }
  void synchronizeDevice(const c10::DeviceIndex) const override {
    for (int number = 0; number < next_stream; ++number) synchronize(number);
  }
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

struct Memory final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override {
    void* data = bytes ? std::malloc(bytes) : nullptr;
    return {data, data, &std::free, c10::Device(TYPE, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &std::free; }
  void copy_data(void* to, const void* from, size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }
};
Memory memory;
REGISTER_ALLOCATOR(TYPE, &memory)

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  c10::DeviceIndex deviceCount() const override { return 1; }
  c10::DeviceIndex getCurrentDevice() const override { return 0; }
  void setCurrentDevice(c10::DeviceIndex) const override {}
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex) const override { return 0; }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex) const override { return 0; }
  bool isPinnedPtr(const void*) const override { return false; }
  c10::Allocator* getPinnedMemoryAllocator() const override {
    return c10::GetAllocator(c10::DeviceType::CPU);
  }
  void resizePrivateUse1Bytes(const c10::Storage& storage, size_t size) const override {
    auto* const impl = storage.unsafeGetStorageImpl();
    auto data = memory.allocate(size);
    const size_t kept = std::min(size, impl->nbytes());
    if (kept) std::memcpy(data.get(), impl->data(), kept);
    impl->set_data_ptr_noswap(std::move(data));
    impl->set_nbytes(size);
  }
};

// --- operations ------------------------------------------------------------------------------------

at::Tensor empty(c10::SymIntArrayRef size, std::optional<at::ScalarType> dtype,
                 std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>,
                 std::optional<at::MemoryFormat> format) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_generic(C10_AS_INTARRAYREF_SLOW(size), &memory, keys,
                                   c10::dtype_or_default(dtype), format);
}

at::Tensor empty_strided(c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                         std::optional<at::ScalarType> dtype, std::optional<at::Layout>,
                         std::optional<at::Device>, std::optional<bool>) {
  constexpr c10::DispatchKeySet keys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(C10_AS_INTARRAYREF_SLOW(size),
                                           C10_AS_INTARRAYREF_SLOW(stride), &memory, keys,
                                           c10::dtype_or_default(dtype));
}

// The same memory, as a CPU tensor.
at::Tensor on_cpu(const at::Tensor& tensor) {
  if (tensor.device().type() != TYPE) return tensor;
  return at::from_blob(tensor.data_ptr(), tensor.sizes(), tensor.strides(),
                       tensor.options().device(c10::DeviceType::CPU));
}

at::Tensor copy_from(const at::Tensor& self, const at::Tensor& target, bool non_blocking) {
  at::NoGradGuard no_grad;
  on_cpu(target).copy_(on_cpu(self));
  if (in_fallback == 0) {
    const bool crosses = self.device().type() != target.device().type();
    charge(current, operation_ns + static_cast<Ns>(self.nbytes()) / (crosses ? 10 : 1000));
    if (crosses && !non_blocking) synchronize(current);
  }
  return target;
}

at::Tensor copy_from_and_resize(const at::Tensor& self, const at::Tensor& target) {
  target.resize_(self.sizes());
  return copy_from(self, target, true);
}

at::Scalar local_scalar(const at::Tensor& self) {
  if (in_fallback == 0) synchronize(current);
  return on_cpu(self).item();
}

const at::Tensor& resize(const at::Tensor& self, c10::SymIntArrayRef size,
                         std::optional<at::MemoryFormat>) {
  const auto sizes = C10_AS_INTARRAYREF_SLOW(size);
  auto* const impl = self.unsafeGetTensorImpl();
  impl->set_sizes_contiguous(sizes);
  const size_t needed = (impl->storage_offset() + impl->numel()) * impl->itemsize();
  if (needed > impl->unsafe_storage().nbytes()) {
    at::detail::getPrivateUse1Hooks().resizePrivateUse1Bytes(impl->unsafe_storage(), needed);
  }
  return self;
}

at::Tensor& set_storage(at::Tensor& self, at::Storage source, int64_t offset,
                        c10::IntArrayRef size, c10::IntArrayRef stride) {
  self.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(source));
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, offset);
  return self;
}

// Of the tensors among the arguments.
Ns moving_time(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  size_t bytes = 0;
  for (const auto& argument : torch::jit::last(stack, op.schema().arguments().size())) {
    if (argument.isTensor() && argument.toTensor().defined()) bytes += argument.toTensor().nbytes();
  }
  return static_cast<Ns>(static_cast<double>(bytes) * ns_per_byte);
}

void fallback(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const Ns duration = operation_ns + moving_time(op, *stack);
  ++in_fallback;
  at::native::cpu_fallback(op, stack);
  --in_fallback;
  if (in_fallback == 0) charge(current, duration);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFromBoxedFunction<&fallback>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, m) {
  m.impl("empty.memory_format", &empty);
  m.impl("empty_strided", &empty_strided);
  m.impl("_copy_from", &copy_from);
  m.impl("_copy_from_and_resize", &copy_from_and_resize);
  m.impl("_local_scalar_dense", &local_scalar);
  m.impl("resize_", &resize);
  m.impl("set_.source_Storage_storage_offset", &set_storage);
  m.impl("as_strided", &at::native::as_strided_tensorimpl);
  m.impl("view", &at::native::view);
  m.impl("_reshape_alias", &at::native::_reshape_alias);
}

// As on a GPU: matrix products in lower precision, the rest as it comes.
TORCH_LIBRARY_IMPL(_, AutocastPrivateUse1, m) {
  m.fallback(torch::CppFunction::makeFallthrough());
}

TORCH_LIBRARY_IMPL(aten, AutocastPrivateUse1, m) {
  KERNEL_PRIVATEUSEONE(linear, lower_precision_fp)
}

}  // namespace

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  static Hooks hooks;
  at::RegisterPrivateUse1HooksInterface(&hooks);
  m.def("work", [](Ns duration) { charge(current, duration); });
  m.def("collective", &collective);
  m.def("set_operation_ns", [](Ns duration) { operation_ns = duration; });
  m.def("set_ns_per_byte", [](double duration) { ns_per_byte = duration; });
  m.def("set_run_ahead", [](size_t most) { run_ahead = most; });
  m.def("synchronizations", [] { return synchronizations.load(); });
  m.def("events_recorded", [] { return events_recorded.load(); });
  m.def("end_of_stream", [](int stream) { return end_of(stream)->at(); });
}
