package gateway

import "sync"

// buffers lends ReverseProxy what it copies with.
var buffers = &bufferPool{pool: sync.Pool{New: func() any { return new([32 << 10]byte) }}}

type bufferPool struct{ pool sync.Pool }

func (b *bufferPool) Get() []byte  { return b.pool.Get().(*[32 << 10]byte)[:] }
func (b *bufferPool) Put(p []byte) { b.pool.Put((*[32 << 10]byte)(p)) }
