// The Python module routing_replay._append. It makes the most common kind of append without ctypes, whose conversions
// take as long as the append itself.
//
//   bind(function)                     to be called once, with the address of rr_appender_append
//   queue(appender, arguments, options)
//
// `queue` takes the arguments and keywords of Appender.append, and never waits. It makes only plain appends: a
// contiguous array of ids, and options that are ints or flags. It never raises because of an argument: it returns 0,
// and the caller then makes the append through ctypes, which raises an error that names the argument. Returns
//
//   n > 0          the sequence number
//   0              not a plain append: nothing has happened, and the caller goes through ctypes
//   -2^62 - n      the sequence number n of an append whose rows were dropped, because the queue is full
//   any other < 0  minus the address of the rr_error, which the caller must free
//
// Uses the stable ABI of Python 3.11, the first with the buffer functions. Python 3.10 exports them, too, and loads it.
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <cstdint>
#include <cstring>
#include <limits>

#include "routing_replay/c_api.h"

namespace {

constexpr int32_t kRollout = 1;
constexpr int64_t kUnknownVersion = -1;
constexpr int64_t kDropped = int64_t{1} << 62;

decltype(&rr_appender_append) append_function = nullptr;

// Returns false if the value is not exactly an int, or does not fit in 64 bits. Leaves no Python exception set.
bool TakeInteger(PyObject* value, int64_t& out) {
  if (!PyLong_CheckExact(value)) return false;
  out = PyLong_AsLongLong(value);
  if (out != -1 || PyErr_Occurred() == nullptr) return true;
  PyErr_Clear();
  return false;
}

bool TakeOptional(PyObject* value, rr_integer& out) {
  if (value == Py_None) return true;
  out.present = 1;
  return TakeInteger(value, out.value);
}

bool TakeFlag(PyObject* value, int32_t& out) {
  out = value == Py_True ? 1 : 0;
  return value == Py_True || value == Py_False;
}

bool TakeText(PyObject* value, rr_text& out) {
  if (!PyUnicode_CheckExact(value)) return false;
  Py_ssize_t size = 0;
  out.data = PyUnicode_AsUTF8AndSize(value, &size);
  out.size = static_cast<size_t>(size);
  if (out.data == nullptr) PyErr_Clear();
  return out.data != nullptr;
}

bool TakeOption(PyObject* name, PyObject* value, rr_append& append, PyObject*& rows) {
  const auto is = [name](const char* option) { return PyUnicode_CompareWithASCIIString(name, option) == 0; };
  if (is("group")) return TakeOptional(value, append.group);
  if (is("num_tokens")) return TakeOptional(value, append.num_tokens);
  if (is("seal")) return TakeFlag(value, append.seal);
  if (is("row_start")) return value == Py_None || TakeInteger(value, append.row_start);
  if (is("weight_version")) return value == Py_None || TakeInteger(value, append.weight_version);
  if (is("attempt")) {
    return TakeOptional(value, append.attempt) && append.attempt.value >= 0 &&
           append.attempt.value <= std::numeric_limits<uint32_t>::max();
  }
  if (is("revision")) return TakeInteger(value, append.revision);
  if (is("rows") && rows == nullptr) {
    rows = value;
    return true;
  }
  return is("sample") && append.sample.data == nullptr && TakeText(value, append.sample);
}

// Reads the arguments. Returns false if the append is not a plain one. `rows` becomes the array of ids.
bool TakeArguments(PyObject* arguments, PyObject* options, rr_append& append, PyObject*& rows) {
  const Py_ssize_t count = PyTuple_Size(arguments);
  if (count > 2) return false;
  if (count > 0 && !TakeText(PyTuple_GetItem(arguments, 0), append.sample)) return false;
  if (count > 1) rows = PyTuple_GetItem(arguments, 1);
  PyObject *name = nullptr, *value = nullptr;
  for (Py_ssize_t position = 0; PyDict_Next(options, &position, &name, &value) != 0;) {
    if (!TakeOption(name, value, append, rows)) return false;
  }
  return append.sample.data != nullptr && rows != nullptr;
}

// The dtype of a buffer, whose format is a letter as in Python's struct module; nullptr if ids cannot have this dtype.
const char* DtypeOf(const Py_buffer& buffer) {
  if (buffer.format == nullptr || buffer.format[0] == '\0' || buffer.format[1] != '\0') return nullptr;
  const char letter = buffer.format[0];
  const bool is_unsigned = letter == 'B' || letter == 'H';
  if (!is_unsigned && std::strchr("bhilq", letter) == nullptr) return nullptr;
  switch (buffer.itemsize) {
    case 1:
      return is_unsigned ? "U8" : "I8";
    case 2:
      return is_unsigned ? "U16" : "I16";
    case 4:
      return "I32";
    default:
      return "I64";
  }
}

int64_t Append(rr_appender* appender, rr_append& append, const Py_buffer& buffer) {
  const char* dtype = DtypeOf(buffer);
  constexpr int kAxes = 3;
  if (buffer.ndim != kAxes || dtype == nullptr) return 0;
  const int64_t shape[kAxes] = {buffer.shape[0], buffer.shape[1], buffer.shape[2]};
  const rr_tensor tensor{.data = buffer.buf,
                         .size = static_cast<size_t>(buffer.len),
                         .dtype = {dtype, std::strlen(dtype)},
                         .shape = shape,
                         .shape_count = kAxes};
  append.rows = &tensor;
  const rr_call call{.timeout_ms = -1};
  uint64_t sequence = 0;
  size_t dropped = 0;
  rr_error* error = nullptr;
  Py_BEGIN_ALLOW_THREADS;
  error = append_function(appender, &append, 1, RR_RAISE, &call, &sequence, &dropped);
  Py_END_ALLOW_THREADS;
  if (error != nullptr) return -static_cast<int64_t>(reinterpret_cast<intptr_t>(error));
  const int64_t number = static_cast<int64_t>(sequence);
  return dropped == 0 ? number : -kDropped - number;
}

PyObject* Bind(PyObject* /*module*/, PyObject* function) {
  append_function = reinterpret_cast<decltype(append_function)>(PyLong_AsVoidPtr(function));
  return PyErr_Occurred() == nullptr ? Py_NewRef(Py_None) : nullptr;
}

PyObject* Queue(PyObject* /*module*/, PyObject* const* given, Py_ssize_t count) {
  constexpr int kGiven = 3;
  if (count != kGiven || !PyLong_CheckExact(given[0])) return PyLong_FromLong(0);
  rr_append append{.producer = kRollout, .weight_version = kUnknownVersion};
  PyObject* rows = nullptr;
  Py_buffer buffer{};
  if (!TakeArguments(given[1], given[2], append, rows)) return PyLong_FromLong(0);
  if (PyObject_GetBuffer(rows, &buffer, PyBUF_C_CONTIGUOUS | PyBUF_FORMAT) != 0) {
    PyErr_Clear();
    return PyLong_FromLong(0);
  }
  const int64_t queued = Append(static_cast<rr_appender*>(PyLong_AsVoidPtr(given[0])), append, buffer);
  PyBuffer_Release(&buffer);
  return PyLong_FromLongLong(queued);
}

PyMethodDef methods[] = {
    {"bind", Bind, METH_O, nullptr},
    {"queue", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Queue)), METH_FASTCALL, nullptr},
    {}};
PyModuleDef module{
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "routing_replay._append", .m_size = -1, .m_methods = methods};

}  // namespace

PyMODINIT_FUNC PyInit__append() { return PyModule_Create(&module); }
